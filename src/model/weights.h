// Weights: the tensors of a model, by role, in the memory of a backend. Matrices have the shape of the file's and the form that
// Backend::matrix_form gives them: type and layout (on the CPU the file's type, quantised ones in panels unless they are only
// looked up). Biases have the type of activations; norms are F32. Absent tensors have data == nullptr.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/tensor.h"
#include "model/model_config.h"

namespace quire {

struct FileTensor;
struct ModelFiles;

struct LayerWeights {
  TensorView attention_norm;                 // [H]
  TensorView q, k, v;                        // [Hq D, H], [Hkv D, H], [Hkv D, H]
  TensorView q_bias, k_bias, v_bias;         // [Hq D], [Hkv D], [Hkv D]; may be absent
  TensorView q_norm, k_norm;                 // [D]; may be absent
  TensorView o, o_bias;                      // [H, Hq D]; bias may be absent
  TensorView post_attention_norm;            // [H]; Gemma only
  TensorView mlp_norm;                       // [H]
  TensorView gate, up, down;                 // [F, H], [F, H], [H, F]
  TensorView gate_bias, up_bias, down_bias;  // may be absent
  TensorView post_mlp_norm;                  // [H]; Gemma only
};

struct Weights {
  TensorView embedding;    // [V, H]
  TensorView output_norm;  // [H]
  TensorView head;         // [V, H]; the embedding if tied
  std::vector<LayerWeights> layers;
  std::int64_t num_bytes = 0;           // of all tensors above, each once
  std::shared_ptr<const void> storage;  // what the views point into: mapped files and device buffers
};

struct LoadedModel {
  ModelConfig config;
  Weights weights;
};

// Loads a GGUF file (of a split model: any one of its files) or a directory with config.json and safetensors. A backend that
// reads a matrix in place gets a view into the mapped file; `backend` must outlive the result. Throws Error naming file, field,
// value.
LoadedModel load_model(const std::string& path, Backend& backend);

// A tensor of the files and the form that load_model() would give it; vectors have one too.
struct PlannedWeight {
  const FileTensor* source = nullptr;
  MatrixForm form;
};
// Each tensor that the model uses, once: the sum of form.num_bytes is Weights::num_bytes. Reads no weight. Throws as load_model()
// does for tensors that do not fit the model.
std::vector<PlannedWeight> plan_weights(const ModelFiles& files, const Backend& backend);

}  // namespace quire
