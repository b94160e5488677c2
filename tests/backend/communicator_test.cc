// Groups of devices: sums, gathers and broadcasts among seats of one process, and among seats that met by an id; what is wrong
// with an argument is said by name. On the emulator three devices are played; with CUDA it takes two GPUs, and less skips all but
// what needs none.
#include "backend/cuda/communicator.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "backend/cuda/cuda_check.h"
#include "core/float16.h"
#include "tests/support/expect_error.h"
#if !defined(QUIRE_TEST_ON_GPU)
#include "simt/devices.h"
#include "simt/nccl.h"
#endif

namespace quire {
namespace {

constexpr std::int64_t kSize = 1000;

class CommunicatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if !defined(QUIRE_TEST_ON_GPU)
    simt::set_num_devices(3);
#endif
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    for (int i = 0; i < count; ++i) devices_.push_back(i);
  }
  void TearDown() override {
#if !defined(QUIRE_TEST_ON_GPU)
    simt::set_num_devices(1);
    simt::fail_nccl_call_after(-1);
    EXPECT_EQ(simt::nccl_counts().seats, 0);
    EXPECT_EQ(std::exchange(simt::nccl_counts().endless_waits, 0), 0) << "a seat was destroyed in the middle of a call";
#endif
  }

  std::vector<int> devices_;
};

#define NEEDS_TWO_DEVICES() \
  if (devices_.size() < 2) GTEST_SKIP() << devices_.size() << " GPUs, two are needed"

// A stream and memory of one device.
class Place {
 public:
  explicit Place(int device) : device_(device) {
    use();
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&memory_, 8 * kSize * sizeof(float)), cudaSuccess);
  }
  ~Place() {
    use();
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  Place(const Place&) = delete;

  cudaStream_t stream() const { return stream_; }
  TensorView view(std::int64_t size, DType type = DType::kF32) const { return TensorView(memory_, type, {size}); }

  template <typename T>
  void put(const std::vector<T>& values) {
    use();
    EXPECT_EQ(cudaMemcpyAsync(memory_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  template <typename T>
  std::vector<T> take(std::int64_t size) {
    use();
    std::vector<T> values(static_cast<std::size_t>(size));
    EXPECT_EQ(cudaMemcpyAsync(values.data(), memory_, values.size() * sizeof(T), cudaMemcpyDeviceToHost, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return values;
  }

 private:
  void use() const { EXPECT_EQ(cudaSetDevice(device_), cudaSuccess); }

  int device_;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
};

std::vector<std::unique_ptr<Place>> places_of(const std::vector<int>& devices) {
  std::vector<std::unique_ptr<Place>> places;
  for (const int device : devices) places.push_back(std::make_unique<Place>(device));
  return places;
}

// Element i of seat r.
float value(int seat, std::int64_t i) { return static_cast<float>(seat * 16 + i % 13); }
std::vector<float> values_of(int seat) {
  std::vector<float> values(kSize);
  for (std::int64_t i = 0; i < kSize; ++i) values[static_cast<std::size_t>(i)] = value(seat, i);
  return values;
}
std::vector<float> sums_over(int seats) {
  std::vector<float> sums(kSize, 0.0f);
  for (int seat = 0; seat < seats; ++seat) {
    for (std::int64_t i = 0; i < kSize; ++i) sums[static_cast<std::size_t>(i)] += value(seat, i);
  }
  return sums;
}

void check_sums(std::vector<Communicator>& seats, std::vector<std::unique_ptr<Place>>& places) {
  const int size = static_cast<int>(seats.size());
  for (int r = 0; r < size; ++r) places[r]->put(values_of(r));
  CommunicatorGroup group;
  for (int r = 0; r < size; ++r) group.all_reduce(seats[r], places[r]->view(kSize), places[r]->stream());
  group.launch();
  for (int r = 0; r < size; ++r) EXPECT_EQ(places[r]->take<float>(kSize), sums_over(size)) << "seat " << r;
}

TEST_F(CommunicatorTest, SumsOfAllSeatsOfAProcess) {
  NEEDS_TWO_DEVICES();
  std::vector<Communicator> seats = Communicator::create_local(devices_);
  ASSERT_EQ(seats.size(), devices_.size());
  for (std::size_t r = 0; r < seats.size(); ++r) {
    EXPECT_EQ(seats[r].rank(), static_cast<int>(r));
    EXPECT_EQ(seats[r].size(), static_cast<int>(seats.size()));
  }
  auto places = places_of(devices_);
  check_sums(seats, places);
  // Small whole numbers: sums are exact in every type.
  for (const DType type : {DType::kF16, DType::kBF16}) {
    for (std::size_t r = 0; r < seats.size(); ++r) places[r]->put(std::vector<std::uint16_t>(kSize, narrow(3.0f, type)));
    CommunicatorGroup group;
    for (std::size_t r = 0; r < seats.size(); ++r) group.all_reduce(seats[r], places[r]->view(kSize, type), places[r]->stream());
    group.launch();
    const std::uint16_t sum = narrow(3.0f * static_cast<float>(seats.size()), type);
    for (const auto& place : places) EXPECT_EQ(place->take<std::uint16_t>(kSize), std::vector<std::uint16_t>(kSize, sum));
  }
}

// Whole and in pieces: a seat's own part may lie in the result.
TEST_F(CommunicatorTest, GathersInTheOrderOfSeats) {
  NEEDS_TWO_DEVICES();
  std::vector<Communicator> seats = Communicator::create_local(devices_);
  auto places = places_of(devices_);
  const int size = static_cast<int>(seats.size());
  std::vector<float> expected;
  for (int r = 0; r < size; ++r) {
    std::vector<float> all(static_cast<std::size_t>(size) * kSize, -1.0f);
    const std::vector<float> own = values_of(r);
    std::copy(own.begin(), own.end(), all.begin() + r * kSize);
    places[r]->put(all);
    expected.insert(expected.end(), own.begin(), own.end());
  }
  CommunicatorGroup group;
  for (int r = 0; r < size; ++r) {
    const TensorView out = places[r]->view(size * kSize);
    group.all_gather(seats[r], out.rows(r * kSize, kSize), out, places[r]->stream());
  }
  group.launch();
  for (int r = 0; r < size; ++r) EXPECT_EQ(places[r]->take<float>(size * kSize), expected) << "seat " << r;
}

TEST_F(CommunicatorTest, BroadcastsFromAnySeat) {
  NEEDS_TWO_DEVICES();
  std::vector<Communicator> seats = Communicator::create_local(devices_);
  auto places = places_of(devices_);
  for (int root = 0; root < static_cast<int>(seats.size()); ++root) {
    for (std::size_t r = 0; r < seats.size(); ++r) places[r]->put(values_of(static_cast<int>(r)));
    CommunicatorGroup group;
    for (std::size_t r = 0; r < seats.size(); ++r) group.broadcast(seats[r], places[r]->view(kSize), root, places[r]->stream());
    group.launch();
    for (const auto& place : places) EXPECT_EQ(place->take<float>(kSize), values_of(root)) << "root " << root;
  }
}

// As processes do that have a device each: rank 0 names the group, the others are told.
TEST_F(CommunicatorTest, SeatsThatMeetByAnId) {
  NEEDS_TWO_DEVICES();
  const Communicator::Id id = Communicator::create_id();
  const int size = static_cast<int>(devices_.size());
  std::vector<std::optional<Communicator>> met(devices_.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) threads.emplace_back([&, r] { met[r].emplace(id, r, size, devices_[r]); });
  for (std::thread& thread : threads) thread.join();
  std::vector<Communicator> seats;
  for (std::optional<Communicator>& seat : met) seats.push_back(std::move(*seat));
  for (int r = 0; r < size; ++r) EXPECT_EQ(seats[r].rank(), r);
  auto places = places_of(devices_);
  check_sums(seats, places);
}

// By an exception after the first of its calls, or by an argument that is refused.
TEST_F(CommunicatorTest, AGroupThatIsLeftHasCalledNothing) {
  NEEDS_TWO_DEVICES();
  std::vector<Communicator> seats = Communicator::create_local(devices_);
  auto places = places_of(devices_);
  try {
    CommunicatorGroup group;
    group.all_reduce(seats[0], places[0]->view(kSize), places[0]->stream());
    group.broadcast(seats[1], places[1]->view(kSize), -1, places[1]->stream());
    FAIL() << "root -1";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
  check_sums(seats, places);
}

// Seats go in any order once their streams are done.
TEST_F(CommunicatorTest, SeatsGoInAnyOrder) {
  NEEDS_TWO_DEVICES();
  for (const bool last_first : {false, true}) {
    std::vector<Communicator> seats = Communicator::create_local(devices_);
    auto places = places_of(devices_);
    check_sums(seats, places);
    while (!seats.empty()) seats.erase(last_first ? seats.end() - 1 : seats.begin());
  }
}

// The others never make the call of seat 0: it would wait for them forever.
TEST_F(CommunicatorTest, AbortedSeatsWaitForNobody) {
  NEEDS_TWO_DEVICES();
  auto places = places_of(devices_);
  std::vector<Communicator> seats = Communicator::create_local(devices_);
  seats[0].all_reduce(places[0]->view(kSize), places[0]->stream());
  for (Communicator& seat : seats) seat.abort();
  EXPECT_EQ(cudaStreamSynchronize(places[0]->stream()), cudaSuccess);
  EXPECT_ERROR(seats[0].all_reduce(places[0]->view(kSize), places[0]->stream()), ErrorCode::kInvalidArgument,
               "all_reduce: this communicator was aborted");
  seats[0].abort();  // once more does nothing
  std::vector<Communicator> next = Communicator::create_local(devices_);
  check_sums(next, places);
}

#if !defined(QUIRE_TEST_ON_GPU)
// Whichever call of a launch fails, none of its seats is left waiting.
TEST_F(CommunicatorTest, ALaunchThatFailsAbortsItsSeats) {
  auto places = places_of(devices_);
  for (int k = 0; k < 3; ++k) {
    std::vector<Communicator> seats = Communicator::create_local(devices_);
    simt::fail_nccl_call_after(k);
    EXPECT_ERROR(check_sums(seats, places), ErrorCode::kDevice, "ncclAllReduce: unhandled cuda error");
    EXPECT_EQ(simt::nccl_counts().seats, 0);
    EXPECT_ERROR(check_sums(seats, places), ErrorCode::kInvalidArgument, "aborted");
  }
  std::vector<Communicator> seats = Communicator::create_local(devices_);
  check_sums(seats, places);
}

TEST_F(CommunicatorTest, ASeatWhoseCallFailsIsAborted) {
  std::vector<Communicator> seats = Communicator::create_local(devices_);
  auto places = places_of(devices_);
  seats[0].all_reduce(places[0]->view(kSize), places[0]->stream());
  simt::fail_nccl_call_after(0);
  EXPECT_ERROR(seats[0].broadcast(places[0]->view(kSize), 0, places[0]->stream()), ErrorCode::kDevice, "ncclBroadcast");
  EXPECT_EQ(simt::nccl_counts().seats, 2);
}
#endif

TEST_F(CommunicatorTest, RefusesByNameWhatMakesNoGroup) {
  const auto local = [](std::vector<int> devices) { return Communicator::create_local(devices); };
  EXPECT_ERROR(local({}), ErrorCode::kInvalidArgument, "no devices");
  EXPECT_ERROR(local({0, 1, 0}), ErrorCode::kInvalidArgument, "device 0 is named twice");
  EXPECT_ERROR(local({-1}), ErrorCode::kInvalidArgument, "device is -1");
  const Communicator::Id id{};
  EXPECT_ERROR(Communicator(id, 0, 0, 0), ErrorCode::kInvalidArgument, "rank 0 of a group of 0");
  EXPECT_ERROR(Communicator(id, 2, 2, 0), ErrorCode::kInvalidArgument, "rank 2 of a group of 2");
  EXPECT_ERROR(Communicator(id, -1, 2, 0), ErrorCode::kInvalidArgument, "rank -1 of a group of 2");
  EXPECT_ERROR(Communicator(id, 0, 2, -3), ErrorCode::kInvalidArgument, "device is -3");
  EXPECT_ERROR(Communicator(id, 0, 2, 1000), ErrorCode::kDevice, "cudaSetDevice");
}

TEST_F(CommunicatorTest, RefusesByNameWhatIsNoTensorOfTheGroup) {
  if (devices_.empty()) GTEST_SKIP() << "no GPU";
  std::vector<Communicator> seats = Communicator::create_local(std::span(devices_).first(1));
  Communicator& seat = seats.front();
  Place place(devices_.front());
  const TensorView x = place.view(8);
  const TensorView none(nullptr, DType::kF32, {8}), ints = place.view(8, DType::kI32);
  TensorView gaps = TensorView(x.data, DType::kF32, {2, 4});
  gaps.outer_stride = 6;
  const cudaStream_t stream = place.stream();
  EXPECT_ERROR(seat.all_reduce(none, stream), ErrorCode::kInvalidArgument, "all_reduce: x has no memory");
  EXPECT_ERROR(seat.all_reduce(ints, stream), ErrorCode::kInvalidArgument, "all_reduce: x is I32 [8], must be F32, F16 or BF16");
  EXPECT_ERROR(seat.all_reduce(gaps, stream), ErrorCode::kInvalidArgument, "all_reduce: x is F32 [2, 4] with gaps");
  EXPECT_ERROR(seat.all_gather(none, x, stream), ErrorCode::kInvalidArgument, "all_gather: in has no memory");
  EXPECT_ERROR(seat.all_gather(x, none, stream), ErrorCode::kInvalidArgument, "all_gather: out has no memory");
  EXPECT_ERROR(seat.all_gather(x, place.view(9), stream), ErrorCode::kInvalidArgument,
               "out is F32 [9], must hold 1 times F32 [8]");
  EXPECT_ERROR(seat.all_gather(x, place.view(8, DType::kF16), stream), ErrorCode::kInvalidArgument, "out is F16 [8]");
  EXPECT_ERROR(seat.all_gather(ints, ints, stream), ErrorCode::kInvalidArgument, "all_gather: in is I32");
  EXPECT_ERROR(seat.broadcast(none, 0, stream), ErrorCode::kInvalidArgument, "broadcast: x has no memory");
  EXPECT_ERROR(seat.broadcast(x, 1, stream), ErrorCode::kInvalidArgument, "root 1 of a group of 1");
  EXPECT_ERROR(seat.broadcast(x, -1, stream), ErrorCode::kInvalidArgument, "root -1 of a group of 1");
  const Communicator taken = std::move(seat);
  EXPECT_ERROR(seat.all_reduce(x, stream), ErrorCode::kInvalidArgument, "all_reduce: this communicator was moved from");
}

}  // namespace
}  // namespace quire
