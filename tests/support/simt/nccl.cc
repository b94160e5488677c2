#include "simt/nccl.h"

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "simt/cuda/nccl.h"
#include "simt/half.h"

namespace {

enum class Kind { kAllReduce, kAllGather, kBroadcast };

struct Call {
  Kind kind;
  const void* send;
  void* receive;
  std::size_t count;
  ncclDataType_t type;
  int root;
  cudaStream_t stream;
};

struct Group {
  explicit Group(int size) : calls(static_cast<std::size_t>(size)) {}
  std::vector<std::deque<Call>> calls;  // by seat, those that others have not met
  std::set<int> seated;                 // ranks that ncclCommInitRank has seen
};

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank;
};

namespace {

std::mutex mutex;  // of what follows
std::condition_variable everybody_is_seated;
std::map<std::string, std::shared_ptr<Group>> named_groups;
int num_ids = 0;

simt::NcclCounts counts;
std::int64_t calls_left = -1;

struct Called {
  std::shared_ptr<Group> group;
  int rank;
};
thread_local int depth = 0;  // of ncclGroupStart
thread_local bool group_failed = false;
thread_local std::vector<Called> called;

std::size_t element_bytes(ncclDataType_t type) { return type == ncclFloat32 ? 4 : 2; }

float read(const void* data, ncclDataType_t type, std::size_t i) {
  if (type == ncclFloat32) return static_cast<const float*>(data)[i];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[i];
  return type == ncclFloat16 ? simt::half_to_float(bits) : simt::bfloat16_to_float(bits);
}

void write(void* data, ncclDataType_t type, std::size_t i, float value) {
  if (type == ncclFloat32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(data)[i] = type == ncclFloat16 ? simt::float_to_half(value) : simt::float_to_bfloat16(value);
  }
}

void reduce(const std::vector<Call>& seats) {
  std::vector<float> sums(seats.front().count, 0.0f);
  for (const Call& seat : seats) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += read(seat.send, seat.type, i);
  }
  for (const Call& seat : seats) {
    for (std::size_t i = 0; i < sums.size(); ++i) write(seat.receive, seat.type, i, sums[i]);
  }
}

// Once all streams are where the call is. Calls that do not fit each other are an error here; on a device they hang.
ncclResult_t meet(const std::vector<Call>& seats) {
  const Call& first = seats.front();
  const std::size_t bytes = first.count * element_bytes(first.type);
  for (const Call& seat : seats) {
    if (seat.kind != first.kind || seat.count != first.count || seat.type != first.type || seat.root != first.root)
      return ncclInvalidUsage;
    if (cudaStreamSynchronize(seat.stream) != cudaSuccess) return ncclUnhandledCudaError;
  }
  if (first.kind == Kind::kAllReduce) reduce(seats);
  for (std::size_t r = 0; r < seats.size(); ++r) {
    for (const Call& seat : seats) {
      if (first.kind == Kind::kAllGather) std::memmove(static_cast<char*>(seat.receive) + r * bytes, seats[r].send, bytes);
      if (first.kind == Kind::kBroadcast && static_cast<int>(r) == first.root) std::memmove(seat.receive, seats[r].send, bytes);
    }
  }
  return ncclSuccess;
}

ncclResult_t run_what_has_met(Group& group) {
  for (;;) {
    std::vector<Call> seats;
    for (const std::deque<Call>& calls : group.calls) {
      if (calls.empty()) return ncclSuccess;
      seats.push_back(calls.front());
    }
    for (std::deque<Call>& calls : group.calls) calls.pop_front();
    if (const ncclResult_t result = meet(seats); result != ncclSuccess) return result;
  }
}

ncclResult_t add(ncclComm_t comm, const Call& call) {
  if (comm == nullptr || call.send == nullptr || call.receive == nullptr) return ncclInvalidArgument;
  if (call.root < 0 || call.root >= static_cast<int>(comm->group->calls.size())) return ncclInvalidArgument;
  if (calls_left >= 0 && calls_left-- == 0) {
    group_failed = depth > 0;
    return ncclUnhandledCudaError;
  }
  comm->group->calls[static_cast<std::size_t>(comm->rank)].push_back(call);
  if (depth == 0) return run_what_has_met(*comm->group);
  called.push_back({comm->group, comm->rank});
  return ncclSuccess;
}

void leave(ncclComm_t comm) {
  comm->group->calls[static_cast<std::size_t>(comm->rank)].clear();
  --counts.seats;
  delete comm;
}

}  // namespace

namespace simt {

NcclCounts& nccl_counts() { return counts; }
void fail_nccl_call_after(std::int64_t count) { calls_left = count; }

}  // namespace simt

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
  }
  return "unknown";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(mutex);
  *id = {};
  std::memcpy(id->internal, &++num_ids, sizeof(num_ids));
  return ncclSuccess;
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int num_devices, const int* devices) {
  const auto group = std::make_shared<Group>(num_devices);
  for (int i = 0; i < num_devices; ++i) {
    if (cudaSetDevice(devices[i]) != cudaSuccess) return ncclInvalidArgument;
  }
  for (int i = 0; i < num_devices; ++i) comms[i] = new ncclComm{group, i};
  counts.seats += num_devices;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int num_ranks, ncclUniqueId id, int rank) {
  const std::string name(id.internal, sizeof(id.internal));
  std::unique_lock lock(mutex);
  std::shared_ptr<Group>& group = named_groups[name];
  if (group == nullptr) group = std::make_shared<Group>(num_ranks);
  if (!group->seated.insert(rank).second) return ncclInvalidUsage;
  *comm = new ncclComm{group, rank};
  ++counts.seats;
  everybody_is_seated.notify_all();
  everybody_is_seated.wait(lock, [&] { return (*comm)->group->seated.size() == static_cast<std::size_t>(num_ranks); });
  named_groups.erase(name);
  return ncclSuccess;
}

// On a device it waits for the seat's calls.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->group->calls[static_cast<std::size_t>(comm->rank)].empty()) ++counts.endless_waits;
  leave(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  leave(comm);
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, {Kind::kAllReduce, send, receive, count, type, 0, stream});
}

ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, {Kind::kAllGather, send, receive, count, type, 0, stream});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return add(comm, {Kind::kBroadcast, send, receive, count, type, root, stream});
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  const std::vector<Called> all = std::exchange(called, {});
  if (std::exchange(group_failed, false)) {  // nothing of it is sent off
    for (const auto& [group, rank] : all) group->calls[static_cast<std::size_t>(rank)].pop_back();
    return ncclUnhandledCudaError;
  }
  ncclResult_t result = ncclSuccess;
  for (const auto& [group, rank] : all) {
    if (const ncclResult_t one = run_what_has_met(*group); one != ncclSuccess) result = one;
  }
  return result;
}
