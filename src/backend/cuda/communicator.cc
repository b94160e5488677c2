#include "backend/cuda/communicator.h"

#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/cuda/cuda_check.h"

namespace quire {
namespace {

void nccl_check(ncclResult_t status, const char* call) {
  if (status != ncclSuccess) fail(ErrorCode::kDevice, "{}: {}", call, ncclGetErrorString(status));
}

ncclDataType_t data_type(const char* op, const char* field, const TensorView& x) {
  switch (x.dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    default:
      fail(ErrorCode::kInvalidArgument, "{}: {} is {}, must be F32, F16 or BF16", op, field, x.describe());
  }
}

void check_tensor(const char* op, const char* field, const TensorView& x) {
  if (x.data == nullptr) fail(ErrorCode::kInvalidArgument, "{}: {} has no memory", op, field);
  if (!x.is_dense()) fail(ErrorCode::kInvalidArgument, "{}: {} is {} with gaps, must be dense", op, field, x.describe());
}

void check_device(int device) {
  if (device < 0) fail(ErrorCode::kInvalidArgument, "communicator: device is {}, below 0", device);
}

static_assert(sizeof(ncclUniqueId) == sizeof(Communicator::Id));

}  // namespace

std::vector<Communicator> Communicator::create_local(std::span<const int> devices) {
  if (devices.empty()) fail(ErrorCode::kInvalidArgument, "communicator: no devices");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    check_device(devices[i]);
    const std::span<const int> before = devices.first(i);
    if (std::find(before.begin(), before.end(), devices[i]) != before.end())
      fail(ErrorCode::kInvalidArgument, "communicator: device {} is named twice", devices[i]);
  }
  std::vector<ncclComm_t> comms(devices.size());
  std::vector<Communicator> seats;
  seats.reserve(devices.size());
  const int size = static_cast<int>(devices.size());
  nccl_check(ncclCommInitAll(comms.data(), size, devices.data()), "ncclCommInitAll");
  for (int rank = 0; rank < size; ++rank) {
    const auto i = static_cast<std::size_t>(rank);
    seats.push_back(Communicator(comms[i], rank, size, devices[i]));
  }
  return seats;
}

Communicator::Id Communicator::create_id() {
  ncclUniqueId made;
  nccl_check(ncclGetUniqueId(&made), "ncclGetUniqueId");
  Id id;
  std::memcpy(id.data(), &made, sizeof(made));
  return id;
}

Communicator::Communicator(const Id& id, int rank, int size, int device) : rank_(rank), size_(size), device_(device) {
  if (size < 1 || rank < 0 || rank >= size) {
    fail(ErrorCode::kInvalidArgument, "communicator: rank {} of a group of {}", rank, size);
  }
  check_device(device);
  cuda_check(cudaSetDevice(device), "cudaSetDevice");
  ncclUniqueId named;
  std::memcpy(&named, id.data(), sizeof(named));
  nccl_check(ncclCommInitRank(&comm_, size, named, rank), "ncclCommInitRank");
}

Communicator::Communicator(Communicator&& other) noexcept { *this = std::move(other); }

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  std::swap(comm_, other.comm_);
  std::swap(aborted_, other.aborted_);
  std::swap(rank_, other.rank_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  return *this;
}

Communicator::~Communicator() {
  if (comm_ != nullptr) (void)ncclCommDestroy(comm_);
}

void Communicator::abort() noexcept {
  if (comm_ != nullptr) (void)ncclCommAbort(std::exchange(comm_, nullptr));
  aborted_ = true;
}

void Communicator::check_usable(const char* op) const {
  if (comm_ != nullptr) return;
  fail(ErrorCode::kInvalidArgument, "{}: this communicator was {}", op, aborted_ ? "aborted" : "moved from");
}

void Communicator::use_device() const { cuda_check(cudaSetDevice(device_), "cudaSetDevice"); }

void Communicator::make(const Call& call) {
  try {
    call();
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::Call Communicator::all_reduce_call(const TensorView& x, cuda::Stream stream) {
  check_usable("all_reduce");
  check_tensor("all_reduce", "x", x);
  const ncclDataType_t type = data_type("all_reduce", "x", x);
  return [this, x, type, stream] {
    use_device();
    const auto count = static_cast<std::size_t>(x.num_elements());
    nccl_check(ncclAllReduce(x.data, x.data, count, type, ncclSum, comm_, stream), "ncclAllReduce");
  };
}

Communicator::Call Communicator::all_gather_call(const TensorView& in, const TensorView& out, cuda::Stream stream) {
  check_usable("all_gather");
  check_tensor("all_gather", "in", in);
  check_tensor("all_gather", "out", out);
  if (out.dtype != in.dtype || out.num_elements() != size_ * in.num_elements()) {
    fail(ErrorCode::kInvalidArgument, "all_gather: out is {}, must hold {} times {}", out.describe(), size_, in.describe());
  }
  const ncclDataType_t type = data_type("all_gather", "in", in);
  return [this, in, out, type, stream] {
    use_device();
    const auto count = static_cast<std::size_t>(in.num_elements());
    nccl_check(ncclAllGather(in.data, out.data, count, type, comm_, stream), "ncclAllGather");
  };
}

Communicator::Call Communicator::broadcast_call(const TensorView& x, int root, cuda::Stream stream) {
  check_usable("broadcast");
  check_tensor("broadcast", "x", x);
  if (root < 0 || root >= size_) fail(ErrorCode::kInvalidArgument, "broadcast: root {} of a group of {}", root, size_);
  const ncclDataType_t type = data_type("broadcast", "x", x);
  return [this, x, type, root, stream] {
    use_device();
    const auto count = static_cast<std::size_t>(x.num_elements());
    nccl_check(ncclBroadcast(x.data, x.data, count, type, root, comm_, stream), "ncclBroadcast");
  };
}

void CommunicatorGroup::all_reduce(Communicator& seat, const TensorView& x, cuda::Stream stream) {
  calls_.emplace_back(&seat, seat.all_reduce_call(x, stream));
}

void CommunicatorGroup::all_gather(Communicator& seat, const TensorView& in, const TensorView& out, cuda::Stream stream) {
  calls_.emplace_back(&seat, seat.all_gather_call(in, out, stream));
}

void CommunicatorGroup::broadcast(Communicator& seat, const TensorView& x, int root, cuda::Stream stream) {
  calls_.emplace_back(&seat, seat.broadcast_call(x, root, stream));
}

void CommunicatorGroup::launch() {
  const auto calls = std::exchange(calls_, {});
  bool is_open = false;
  try {
    nccl_check(ncclGroupStart(), "ncclGroupStart");
    is_open = true;
    for (const auto& [seat, call] : calls) call();
    is_open = false;
    nccl_check(ncclGroupEnd(), "ncclGroupEnd");
  } catch (...) {
    if (is_open) (void)ncclGroupEnd();
    for (const auto& [seat, call] : calls) seat->abort();
    throw;
  }
}

}  // namespace quire
