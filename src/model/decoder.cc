// The order of operations, for every family (pre-norm transformer; the starred ones only where the tensor exists):
//
// clang-format off
//   residual = embedding_scale * embedding[token]
//   for each layer:
//     normed    = rms_norm(residual)
//     q, k, v   = normed W^T (+ bias*)
//     q, k      = rope(rms_norm*(q) per head), rope(rms_norm*(k) per head)
//     pages    += k, v
//     residual += post_attention_norm*(attention(q, pages) Wo^T (+ bias*))
//     normed    = rms_norm(residual)
//     residual += post_mlp_norm*((activation(normed Wg^T) * (normed Wu^T)) Wd^T)
//   logits = softcap*(rms_norm(residual) Whead^T)
// clang-format on
#include "model/decoder.h"

#include <algorithm>

#include "core/check.h"

namespace quire {
namespace {

// Of all products, that of Q, K and V hurts most when activations are rounded to 8 bits, and it is an eighth of the work: a
// second term takes a quarter of the whole model's logprob error away (docs/quality.md, tests/quality/error_sources.py).
constexpr int kQkvTerms = 2;

DeviceBuffer upload_frequencies(Backend& backend, const ModelConfig& config, TensorView& full, TensorView& sliding) {
  std::vector<float> all = config.rope_full.inv_freq;
  all.insert(all.end(), config.rope_sliding.inv_freq.begin(), config.rope_sliding.inv_freq.end());
  DeviceBuffer memory = backend.allocate(all.size() * sizeof(float));
  backend.upload(memory.data(), all.data(), all.size() * sizeof(float));
  const auto full_size = static_cast<std::int64_t>(config.rope_full.inv_freq.size());
  full = TensorView(memory.data(), DType::kF32, {full_size});
  sliding = TensorView(static_cast<float*>(memory.data()) + full_size, DType::kF32,
                       {static_cast<std::int64_t>(config.rope_sliding.inv_freq.size())});
  return memory;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const Weights& weights, Backend& backend, KvPool& pool, int max_tokens,
                 int max_logit_rows)
    : config_(config),
      weights_(weights),
      backend_(backend),
      pool_(pool),
      activations_(backend, config, max_tokens, max_logit_rows),
      inv_freq_memory_(upload_frequencies(backend, config, inv_freq_full_, inv_freq_sliding_)) {
  backend.check_attention(pool.layer(0), config.num_heads);
  prepare_products(max_tokens);
}

MatmulArgs Decoder::qkv_product(int layer, std::int64_t tokens) const {
  const Activations& a = activations_;
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  return {.x = a.normed.rows(0, tokens),
          .num_projections = 3,
          .activation_terms = kQkvTerms,
          .projections = {
              {w.q, w.q_bias, a.q.rows(0, tokens)}, {w.k, w.k_bias, a.k.rows(0, tokens)}, {w.v, w.v_bias, a.v.rows(0, tokens)}}};
}

MatmulArgs Decoder::output_product(int layer, std::int64_t tokens) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  return {.x = activations_.attended.rows(0, tokens),
          .num_projections = 1,
          .projections = {{w.o, w.o_bias, activations_.projected.rows(0, tokens)}}};
}

MatmulArgs Decoder::gate_up_product(int layer, std::int64_t tokens) const {
  const Activations& a = activations_;
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  return {.x = a.normed.rows(0, tokens),
          .num_projections = 2,
          .projections = {{w.gate, w.gate_bias, a.gate.rows(0, tokens)}, {w.up, w.up_bias, a.up.rows(0, tokens)}}};
}

MatmulArgs Decoder::down_product(int layer, std::int64_t tokens) const {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  return {.x = activations_.gate.rows(0, tokens),
          .num_projections = 1,
          .projections = {{w.down, w.down_bias, activations_.projected.rows(0, tokens)}}};
}

MatmulArgs Decoder::head_product(std::int64_t rows) const {
  return {.x = activations_.head_input.rows(0, rows),
          .num_projections = 1,
          .projections = {{weights_.head, {}, activations_.logits.rows(0, rows)}}};
}

// A step begins at row 0 of every buffer, so its products differ from the largest in their number of rows alone.
void Decoder::prepare_products(int max_tokens) {
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    for (const MatmulArgs& product : {qkv_product(layer, max_tokens), output_product(layer, max_tokens),
                                      gate_up_product(layer, max_tokens), down_product(layer, max_tokens)}) {
      backend_.prepare_matmul(product);
    }
  }
  backend_.prepare_matmul(head_product(std::min(max_logit_rows(), max_tokens)));
}

void Decoder::forward(const Batch& batch) {
  Activations& a = activations_;
  QUIRE_CHECK_MSG(batch.num_tokens >= 1 && batch.num_tokens <= a.residual.dim(0), "a batch of {} tokens", batch.num_tokens);
  const TensorView residual = a.residual.rows(0, batch.num_tokens);
  rope_tables(batch);
  backend_.embed({.table = weights_.embedding, .token_ids = batch.token_ids, .out = residual, .scale = config_.embedding_scale});
  backend_.rms_norm({.x = residual,
                     .weight = weights_.layers.front().attention_norm,
                     .out = a.normed.rows(0, batch.num_tokens),
                     .eps = config_.rms_eps});
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    attention_block(layer, batch);
    mlp_block(layer, batch.num_tokens);
  }
}

void Decoder::rope_tables(const Batch& batch) {
  const auto table = [&](const RopeConfig& rope, const TensorView& inv_freq, const TensorView& out) {
    if (inv_freq.dim(0) == 0) return;
    backend_.rope_table({.positions = batch.positions,
                         .inv_freq = inv_freq,
                         .magnitude = rope.magnitude,
                         .cos_sin = out.rows(0, batch.num_tokens).reshaped({batch.num_tokens, inv_freq.dim(0), 2})});
  };
  table(config_.rope_full, inv_freq_full_, activations_.cos_sin_full);
  table(config_.rope_sliding, inv_freq_sliding_, activations_.cos_sin_sliding);
}

// From normed to normed: attention's share of the layer, the norm before the MLP included.
void Decoder::attention_block(int layer, const Batch& batch) {
  Activations& a = activations_;
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const std::int64_t tokens = batch.num_tokens;
  const TensorView q = a.q.rows(0, tokens);
  const TensorView k = a.k.rows(0, tokens);
  const TensorView v = a.v.rows(0, tokens);
  backend_.matmul(qkv_product(layer, tokens));

  const auto norm_heads = [&](const TensorView& x, const TensorView& weight, int heads) {
    if (weight.data == nullptr) return;
    const TensorView per_head = x.reshaped({tokens * heads, config_.head_size});
    backend_.rms_norm({.x = per_head, .weight = weight, .out = per_head, .eps = config_.rms_eps});
  };
  norm_heads(q, w.q_norm, config_.num_heads);
  norm_heads(k, w.k_norm, config_.num_kv_heads);

  const bool sliding = config_.layer_is_sliding(layer) && inv_freq_sliding_.dim(0) > 0;
  const RopeConfig& rope = sliding ? config_.rope_sliding : config_.rope_full;
  const TensorView& table = sliding ? a.cos_sin_sliding : a.cos_sin_full;
  const auto pairs = static_cast<std::int64_t>(rope.inv_freq.size());
  const TensorView cos_sin = table.rows(0, tokens).reshaped({tokens, pairs, 2});

  const KvLayer kv = pool_.layer(layer);
  const BatchGroup& group = batch.groups[static_cast<std::size_t>(pool_.group_of_layer(layer))];
  backend_.rope_append_kv({.q = q.reshaped({tokens, config_.num_heads, config_.head_size}),
                           .k = k.reshaped({tokens, config_.num_kv_heads, config_.head_size}),
                           .v = v.reshaped({tokens, config_.num_kv_heads, config_.head_size}),
                           .cos_sin = cos_sin,
                           .slots = group.slots,
                           .kv = kv,
                           .kind = rope.kind});
  attend(kv, group, batch, config_.layer_windows[static_cast<std::size_t>(layer)]);

  const TensorView out = a.projected.rows(0, tokens);
  backend_.matmul(output_product(layer, tokens));
  if (w.post_attention_norm.data != nullptr) {
    backend_.rms_norm({.x = out, .weight = w.post_attention_norm, .out = out, .eps = config_.rms_eps});
  }
  backend_.add_rms_norm({.residual = a.residual.rows(0, tokens),
                         .x = out,
                         .weight = w.mlp_norm,
                         .out = a.normed.rows(0, tokens),
                         .eps = config_.rms_eps});
}

// Decode rows come first in a batch; offsets in the CSR arrays are absolute, so a segment is a view.
void Decoder::attend(const KvLayer& kv, const BatchGroup& group, const Batch& batch, int window) {
  const auto heads = [&](const TensorView& x) {
    return x.rows(0, batch.num_tokens).reshaped({batch.num_tokens, config_.num_heads, config_.head_size});
  };
  const auto segment = [&](int first, int count, const AttentionWork& work) {
    return AttentionArgs{.q = heads(activations_.q),
                         .out = heads(activations_.attended),
                         .kv = kv,
                         .q_indptr = batch.q_indptr.rows(first, count + 1),
                         .kv_lens = batch.kv_lens.rows(first, count),
                         .page_indptr = group.page_indptr.rows(first, count + 1),
                         .page_indices = group.page_indices,
                         .scale = config_.attention_scale,
                         .window = window,
                         .softcap = config_.attention_softcap,
                         .work = work};
  };
  const int num_prefill = batch.num_sequences - batch.num_decode;
  if (batch.num_decode > 0) backend_.decode_attention(segment(0, batch.num_decode, group.decode_work));
  if (num_prefill > 0) backend_.prefill_attention(segment(batch.num_decode, num_prefill, group.prefill_work));
}

// From normed to normed: the MLP's share of the layer, the norm of the next layer (or of the head) included.
void Decoder::mlp_block(int layer, int num_tokens) {
  Activations& a = activations_;
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  const TensorView gate = a.gate.rows(0, num_tokens);
  const TensorView up = a.up.rows(0, num_tokens);
  const TensorView out = a.projected.rows(0, num_tokens);
  const TensorView normed = a.normed.rows(0, num_tokens);
  backend_.matmul(gate_up_product(layer, num_tokens));
  backend_.gated_activation({.gate = gate, .up = up, .out = gate, .activation = config_.activation});
  backend_.matmul(down_product(layer, num_tokens));
  if (w.post_mlp_norm.data != nullptr) {
    backend_.rms_norm({.x = out, .weight = w.post_mlp_norm, .out = out, .eps = config_.rms_eps});
  }
  const bool last = layer + 1 == config_.num_layers;
  backend_.add_rms_norm(
      {.residual = a.residual.rows(0, num_tokens),
       .x = out,
       .weight = last ? weights_.output_norm : weights_.layers[static_cast<std::size_t>(layer) + 1].attention_norm,
       .out = normed,
       .eps = config_.rms_eps});
}

TensorView Decoder::logits(const TensorView& rows) {
  Activations& a = activations_;
  const std::int64_t num_rows = rows.dim(0);
  QUIRE_CHECK_MSG(num_rows >= 1 && num_rows <= a.logits.dim(0), "{} logit rows", num_rows);
  const TensorView input = a.head_input.rows(0, num_rows);
  const TensorView out = a.logits.rows(0, num_rows);
  backend_.gather_rows({.x = a.normed, .rows = rows, .out = input});
  backend_.matmul(head_product(num_rows));
  if (config_.final_softcap > 0.0f) backend_.softcap({.logits = out, .cap = config_.final_softcap});
  return out;
}

}  // namespace quire
