// What an engine makes of its options and model, for those who must know before there is an engine.
#pragma once

#include "core/dtype.h"
#include "model/model_config.h"
#include "quire/engine.h"

namespace quire {

// The element type of the KV pool. Throws Error(kInvalidArgument) for a value that is no KvType.
DType kv_dtype(const EngineOptions& options);
// Logits are made for at most so many rows at a time.
int max_logit_rows(const ModelConfig& config);

}  // namespace quire
