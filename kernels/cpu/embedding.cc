// Rows of the embedding table as floats. Dequantisation is d * q, or d * q + m in two rounded steps: docs/numerics.md.
#include "kernels/cpu/panel_row.h"
#include "kernels/cpu/variant.h"

namespace quire::cpu::QUIRE_ISA {
namespace {

template <DType kType>
void dequantize_row(const TensorView& table, std::int64_t id, float scale, float* out) {
  const bool panels = table.layout == Layout::kPanels;
  const auto* row = static_cast<const std::uint8_t*>(table.row(panels ? id / kPanelRows * kPanelRows : id));
  for (std::int64_t b = 0; b < table.shape[1] / kBlock; ++b, out += kBlock) {
    WeightBlock w;
    if (panels) {
      unpack_panel_block<kType>(row, static_cast<int>(id % kPanelRows), b, w);
    } else {
      unpack_block<kType>(row, b, w);
    }
    for (int i = 0; i < kBlock; ++i) {
      const int half = i / 16;
      const float d = has_half_scales(kType) ? w.d * static_cast<float>(w.half_scale[half]) : w.d;
      float value = d * static_cast<float>(w.q[i]);
      if constexpr (has_minimum(kType)) value = value + w.m;
      out[i] = value * scale;
    }
  }
}

template <typename Element, float (*kWiden)(Element)>
void widen_row(const TensorView& table, std::int64_t id, float scale, float* out) {
  const auto* row = table.row_as<const std::uint8_t>(id);
  for (std::int64_t i = 0; i < table.shape[1]; ++i) {
    Element element;
    __builtin_memcpy(&element, row + i * static_cast<std::int64_t>(sizeof element), sizeof element);
    out[i] = kWiden(element) * scale;
  }
}

float same(float f) { return f; }

using RowFunction = void (*)(const TensorView& table, std::int64_t id, float scale, float* out);

RowFunction row_function(DType type) {
  if (is_quantized(type)) return for_quantized_type(type, []<DType kType>() -> RowFunction { return dequantize_row<kType>; });
  switch (type) {
    case DType::kF16:
      return widen_row<std::uint16_t, f16_to_f32>;
    case DType::kBF16:
      return widen_row<std::uint16_t, bf16_to_f32>;
    default:
      return widen_row<float, same>;
  }
}

}  // namespace

void embed(const EmbedArgs& args, ThreadPool& pool) {
  const RowFunction row = row_function(args.table.dtype);
  const std::int32_t* ids = args.token_ids.as<const std::int32_t>();
  pool.parallel_for(args.out.shape[0], 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t t = begin; t < end; ++t) {
      row(args.table, ids[t], args.scale, args.out.row_as<float>(t));
    }
  });
}

}  // namespace quire::cpu::QUIRE_ISA
