// Communicator: one device's seat in a group of devices that exchange tensors over NCCL (sums, gathers, broadcasts, in stream
// order). All seats of a group call the same operations in the same order. Two ways to form a group: all devices in this process,
// or one device per process around an id that rank 0 makes and the application carries to the others. One thread per seat, or one
// thread for all seats within a CommunicatorGroup. Throws Error(kInvalidArgument) naming what is wrong with an argument, and
// Error(kDevice) naming the call that failed.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "kernels/cuda/stream.h"

struct ncclComm;

namespace quire {

class Communicator {
 public:
  using Id = std::array<std::byte, 128>;

  // Seats 0 to n - 1 for `devices`, all of this process: at least one, none twice.
  static std::vector<Communicator> create_local(std::span<const int> devices);
  // Names a new group. For rank 0, which tells the others.
  static Id create_id();
  // Seat `rank` of `size`, on `device`; waits for the others.
  Communicator(const Id& id, int rank, int size, int device);
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  ~Communicator();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // x = the sum of every seat's x; F32, F16 or BF16, dense.
  void all_reduce(const TensorView& x, cuda::Stream stream);
  // out[r] = the `in` of seat r: out has size() times the elements of in, same type, both dense.
  void all_gather(const TensorView& in, const TensorView& out, cuda::Stream stream);
  // x = the x of seat `root`; dense.
  void broadcast(const TensorView& x, int root, cuda::Stream stream);

 private:
  void use(const char* op) const;  // makes this seat's device the calling thread's
  Communicator(ncclComm* comm, int rank, int size, int device) : comm_(comm), rank_(rank), size_(size), device_(device) {}

  ncclComm* comm_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  int device_ = 0;
};

// Calls of one thread on several seats, from construction to launch(), which sends them off together: one after the other they
// would wait for each other forever.
class CommunicatorGroup {
 public:
  CommunicatorGroup();
  ~CommunicatorGroup();  // without launch(): closes the group, whatever became of it
  CommunicatorGroup(const CommunicatorGroup&) = delete;
  void launch();

 private:
  bool open_ = true;
};

}  // namespace quire
