// Decoder: the forward pass of a decoder-only transformer over a Batch, written once for every family and device. Families differ
// in ModelConfig and in which tensors are present. Owns its activations; borrows weights, pool and backend.
#pragma once

#include "model/activations.h"
#include "model/batch.h"
#include "model/kv_pool.h"
#include "model/weights.h"

namespace quire {

class Decoder {
 public:
  // Every reference must outlive the decoder. `max_logit_rows` bounds the rows of one call of logits(): a row takes V floats.
  Decoder(const ModelConfig& config, const Weights& weights, Backend& backend, KvPool& pool, int max_tokens, int max_logit_rows);

  // Computes the batch: appends its keys and values to the pool and leaves the last layer's output, normalised, for logits().
  // REQUIRES: 1 <= batch.num_tokens <= max_tokens.
  void forward(const Batch& batch);

  // Logits [R, V] F32 of rows of the last forward pass. `rows` [R] I32 on the device; valid until the next call.
  // REQUIRES: 1 <= R <= max_logit_rows.
  TensorView logits(const TensorView& rows);

  int max_logit_rows() const { return static_cast<int>(activations_.logits.dim(0)); }

 private:
  // The products of a layer for so many tokens, and that of the head.
  MatmulArgs qkv_product(int layer, std::int64_t tokens) const;
  MatmulArgs output_product(int layer, std::int64_t tokens) const;
  MatmulArgs gate_up_product(int layer, std::int64_t tokens) const;
  MatmulArgs down_product(int layer, std::int64_t tokens) const;
  MatmulArgs head_product(std::int64_t rows) const;
  void prepare_products(int max_tokens);

  void rope_tables(const Batch& batch);
  void attention_block(int layer, const Batch& batch);
  void attend(const KvLayer& kv, const BatchGroup& group, const Batch& batch, int window);
  void mlp_block(int layer, int num_tokens);

  const ModelConfig& config_;
  const Weights& weights_;
  Backend& backend_;
  KvPool& pool_;
  Activations activations_;
  TensorView inv_freq_full_;      // [rot / 2] F32
  TensorView inv_freq_sliding_;   // [rot / 2] F32; no elements without sliding layers
  DeviceBuffer inv_freq_memory_;  // after the views: its initialiser sets them
};

}  // namespace quire
