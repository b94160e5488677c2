// Communicator: one device's seat in a group of devices that exchange tensors over NCCL (sums, gathers, broadcasts, in stream
// order). All seats of a group call the same operations in the same order. Two ways to form a group: all devices in this process,
// or one device per process around an id that rank 0 makes and the application carries to the others. One thread per seat, or one
// thread for all seats with a CommunicatorGroup. Throws Error(kInvalidArgument) naming what is wrong with an argument, before
// anything is called, and Error(kDevice) naming the call of NCCL that failed.
//
// The end of a group: first every seat's streams are waited for, then the seats are destroyed, in any order. A seat's destructor
// waits for its own calls, which end when all others have made theirs: so where a seat will make no more calls, because its
// device or its process failed, every other is aborted. A seat whose call failed has aborted itself.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
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
  ~Communicator();  // waits for the seat's calls

  int rank() const { return rank_; }
  int size() const { return size_; }

  // x = the sum of every seat's x; F32, F16 or BF16, dense.
  void all_reduce(const TensorView& x, cuda::Stream stream) { make(all_reduce_call(x, stream)); }
  // out[r] = the `in` of seat r: out has size() times the elements of in, same type, both dense.
  void all_gather(const TensorView& in, const TensorView& out, cuda::Stream stream) { make(all_gather_call(in, out, stream)); }
  // x = the x of seat `root`; dense.
  void broadcast(const TensorView& x, int root, cuda::Stream stream) { make(broadcast_call(x, root, stream)); }

  // Gives up the seat and what its calls have not done, without waiting for anybody; the streams can be waited for then. What
  // these calls were to write is undefined.
  void abort() noexcept;

 private:
  friend class CommunicatorGroup;
  using Call = std::function<void()>;

  Communicator(ncclComm* comm, int rank, int size, int device) : comm_(comm), rank_(rank), size_(size), device_(device) {}

  // Checked, and to be made while the seat stays where it is.
  Call all_reduce_call(const TensorView& x, cuda::Stream stream);
  Call all_gather_call(const TensorView& in, const TensorView& out, cuda::Stream stream);
  Call broadcast_call(const TensorView& x, int root, cuda::Stream stream);
  void make(const Call& call);
  void check_usable(const char* op) const;
  void use_device() const;

  ncclComm* comm_ = nullptr;
  bool aborted_ = false;
  int rank_ = 0;
  int size_ = 1;
  int device_ = 0;
};

// Calls of one thread on several seats that launch() sends off together: one after the other they would wait for each other
// forever. Before launch() nothing is sent, so a group that is left without it has called nothing.
class CommunicatorGroup {
 public:
  CommunicatorGroup() = default;
  CommunicatorGroup(const CommunicatorGroup&) = delete;

  // As the seat's own functions. REQUIRES: the seat stays where it is until launch().
  void all_reduce(Communicator& seat, const TensorView& x, cuda::Stream stream);
  void all_gather(Communicator& seat, const TensorView& in, const TensorView& out, cuda::Stream stream);
  void broadcast(Communicator& seat, const TensorView& x, int root, cuda::Stream stream);

  // If a call fails every seat of the group is aborted: part of the calls may be on their way, and would wait for the others.
  void launch();

 private:
  std::vector<std::pair<Communicator*, Communicator::Call>> calls_;
};

}  // namespace quire
