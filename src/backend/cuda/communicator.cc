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
  std::swap(rank_, other.rank_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  return *this;
}

Communicator::~Communicator() {
  if (comm_ != nullptr) (void)ncclCommDestroy(comm_);
}

void Communicator::use(const char* op) const {
  if (comm_ == nullptr) fail(ErrorCode::kInvalidArgument, "{}: this communicator was moved from", op);
  cuda_check(cudaSetDevice(device_), "cudaSetDevice");
}

void Communicator::all_reduce(const TensorView& x, cuda::Stream stream) {
  check_tensor("all_reduce", "x", x);
  use("all_reduce");
  nccl_check(ncclAllReduce(x.data, x.data, static_cast<std::size_t>(x.num_elements()), data_type("all_reduce", "x", x), ncclSum,
                           comm_, stream),
             "ncclAllReduce");
}

void Communicator::all_gather(const TensorView& in, const TensorView& out, cuda::Stream stream) {
  check_tensor("all_gather", "in", in);
  check_tensor("all_gather", "out", out);
  if (out.dtype != in.dtype || out.num_elements() != size_ * in.num_elements()) {
    fail(ErrorCode::kInvalidArgument, "all_gather: out is {}, must hold {} times {}", out.describe(), size_, in.describe());
  }
  use("all_gather");
  nccl_check(ncclAllGather(in.data, out.data, static_cast<std::size_t>(in.num_elements()), data_type("all_gather", "in", in),
                           comm_, stream),
             "ncclAllGather");
}

void Communicator::broadcast(const TensorView& x, int root, cuda::Stream stream) {
  check_tensor("broadcast", "x", x);
  if (root < 0 || root >= size_) fail(ErrorCode::kInvalidArgument, "broadcast: root {} of a group of {}", root, size_);
  use("broadcast");
  nccl_check(ncclBroadcast(x.data, x.data, static_cast<std::size_t>(x.num_elements()), data_type("broadcast", "x", x), root,
                           comm_, stream),
             "ncclBroadcast");
}

CommunicatorGroup::CommunicatorGroup() { nccl_check(ncclGroupStart(), "ncclGroupStart"); }

CommunicatorGroup::~CommunicatorGroup() {
  if (open_) (void)ncclGroupEnd();
}

void CommunicatorGroup::launch() {
  open_ = false;
  nccl_check(ncclGroupEnd(), "ncclGroupEnd");
}

}  // namespace quire
