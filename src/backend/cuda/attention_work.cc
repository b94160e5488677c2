#include "backend/cuda/attention_work.h"

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "core/check.h"

namespace quire {
namespace {

// The first ints: what a launch must know on the host.
struct Head {
  std::int32_t row_tile;
  std::int32_t num_waves, num_items, num_combines;
  std::int32_t num_partial_rows;
};

constexpr cuda::WorkItem kNoItem{-1, 0, 0, 0, 0, -1};
constexpr cuda::CombineItem kNoCombine{-1, 0, 0, 0, 0};

template <typename T>
constexpr std::int64_t kInts = sizeof(T) / sizeof(std::int32_t);

template <typename T>
void append(const T* values, std::size_t count, std::vector<std::int32_t>& list) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(std::int32_t) == 0 && alignof(T) == alignof(std::int32_t));
  const std::size_t old = list.size();
  list.resize(old + count * static_cast<std::size_t>(kInts<T>));
  if (count > 0) std::memcpy(list.data() + old, values, count * sizeof(T));
}

}  // namespace

void append_work(cuda::SplitPlan plan, std::vector<std::int32_t>& list, std::vector<std::int32_t>& on_host) {
  if (plan.items.empty()) return on_host.push_back(0);  // no row_tile: nothing that follows can be taken for a head
  if (plan.waves.size() == 1) {
    plan.items.resize(std::bit_ceil(plan.items.size()), kNoItem);
    if (!plan.combines.empty()) plan.combines.resize(std::bit_ceil(plan.combines.size()), kNoCombine);
    plan.waves.front().num_items = static_cast<int>(plan.items.size());
    plan.waves.front().num_combines = static_cast<int>(plan.combines.size());
  }
  Head head{plan.row_tile, static_cast<std::int32_t>(plan.waves.size()), static_cast<std::int32_t>(plan.items.size()),
            static_cast<std::int32_t>(plan.combines.size()), static_cast<std::int32_t>(plan.num_partial_rows)};
  append(&head, 1, list);
  append(plan.waves.data(), plan.waves.size(), list);
  head.num_partial_rows = 0;  // varies from step to step, but no launch depends on it: see PartialMemory
  append(&head, 1, on_host);
  append(plan.waves.data(), plan.waves.size(), on_host);
  append(plan.items.data(), plan.items.size(), list);
  append(plan.combines.data(), plan.combines.size(), list);
}

std::int64_t most_ints(const cuda::SplitSize& size) {
  const auto filled_up = [](std::int64_t count) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)));
  };
  return kInts<Head> + size.num_waves * kInts<cuda::SplitWave> + filled_up(size.num_items) * kInts<cuda::WorkItem> +
         filled_up(size.num_combines) * kInts<cuda::CombineItem>;
}

cuda::AttentionPlan attention_plan(const AttentionWork& work, int head_size, const PartialMemory& memory) {
  QUIRE_CHECK(work.on_host != nullptr && work.on_device.num_elements() >= kInts<Head>);
  Head head{};
  std::memcpy(&head, work.on_host, sizeof(head));
  const std::int64_t waves = kInts<Head>, items = waves + head.num_waves * kInts<cuda::SplitWave>;
  const std::int64_t combines = items + head.num_items * kInts<cuda::WorkItem>;
  QUIRE_CHECK(work.on_device.num_elements() == combines + head.num_combines * kInts<cuda::CombineItem>);
  auto* device = work.on_device.as<std::int32_t>();
  cuda::AttentionPlan plan;
  plan.items = TensorView(device + items, DType::kI32, {head.num_items, kInts<cuda::WorkItem>});
  if (head.num_combines > 0)
    plan.combines = TensorView(device + combines, DType::kI32, {head.num_combines, kInts<cuda::CombineItem>});
  // The list was written as ints and is read as structs of ints.
  plan.waves = {reinterpret_cast<const cuda::SplitWave*>(work.on_host + waves), static_cast<std::size_t>(head.num_waves)};
  plan.row_tile = head.row_tile;
  plan.num_partial_rows = memory.bytes / cuda::partial_bytes(1, head_size);
  plan.workspace = memory.data;
  QUIRE_CHECK(head.num_partial_rows <= plan.num_partial_rows);
  return plan;
}

}  // namespace quire
