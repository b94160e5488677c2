// Batch: one step as arrays on the device. Built by src/engine/batch_builder from a StepPlan; what the decoder computes from.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace quire {

// The part of a step that differs by KV group.
struct BatchGroup {
  TensorView slots;            // [T] I64: where each token's K and V go; negative: nowhere
  TensorView page_indptr;      // [S + 1] I32
  TensorView page_indices;     // [P] I32
  AttentionWork decode_work;   // of Backend::plan_attention, for the first num_decode sequences
  AttentionWork prefill_work;  // for the others
};

struct Batch {
  int num_tokens = 0;     // T
  int num_sequences = 0;  // S
  int num_decode = 0;     // the first sequences, of one new token each
  TensorView token_ids;   // [T] I32
  TensorView positions;   // [T] I32
  TensorView q_indptr;    // [S + 1] I32
  TensorView kv_lens;     // [S] I32, the new tokens included
  std::vector<BatchGroup> groups;
  TensorView logit_rows;  // [R] I32, ascending: rows that logits are wanted of
  ReplayKey replay_key;   // for Backend::run: equal keys, equal launches of the forward pass; empty: no promise
};

}  // namespace quire
