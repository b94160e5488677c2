// From files to Weights, in two passes: check every tensor and decide which are read in place; then fill one buffer of the
// backend with the rest.
#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "core/float16.h"
#include "core/math.h"
#include "model/dequantize.h"
#include "model/mapped_file.h"
#include "model/model_files.h"

namespace quire {
namespace {

constexpr std::int64_t kPieceRows = 256;       // what rows are converted together: many times what any device packs together
constexpr std::int64_t kPlaceAlignment = 256;  // bytes, of each tensor in the buffer

// A tensor of the model with its bytes in the file, and its place in the buffer unless it is read where it is.
struct Placement {
  ExpectedTensor expected;
  const FileTensor* source = nullptr;
  MatrixForm form{};         // on the device; of vectors too
  std::int64_t offset = -1;  // bytes into the buffer; negative: a view of the file
};

void check_tensor(const ExpectedTensor& expected, const FileTensor& tensor, const std::string& path) {
  const bool fits = expected.is_vector()
                        ? tensor.rank == 1 && tensor.dim(0) == expected.rows
                        : tensor.rank == 2 && tensor.dim(0) == expected.rows && tensor.dim(1) == expected.columns;
  if (!fits) {
    fail(ErrorCode::kInvalidFile, "{}: tensor {}, expected {}", path, tensor.describe(),
         expected.is_vector() ? fmt::format("[{}]", expected.rows) : fmt::format("[{}, {}]", expected.rows, expected.columns));
  }
  if (expected.is_vector() && is_quantized(tensor.dtype)) {
    fail(ErrorCode::kInvalidFile, "{}: tensor {}: norms and biases are not quantised", path, tensor.describe());
  }
}

// Kernels read quantised blocks byte by byte, other types by the element.
bool is_aligned(const FileTensor& tensor) {
  if (is_quantized(tensor.dtype)) return true;
  return reinterpret_cast<std::uintptr_t>(tensor.data.data()) % static_cast<std::size_t>(block_bytes(tensor.dtype)) == 0;
}

std::vector<Placement> match_tensors(const ModelFiles& files, std::vector<ExpectedTensor> expected) {
  std::unordered_map<std::string_view, const FileTensor*> by_name;
  for (const FileTensor& tensor : files.tensors) by_name.emplace(tensor.name, &tensor);
  std::vector<Placement> placements;
  for (ExpectedTensor& tensor : expected) {
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end()) fail(ErrorCode::kInvalidFile, "{}: tensor '{}' is missing", files.path, tensor.name);
    check_tensor(tensor, *found->second, files.path);
    placements.push_back({std::move(tensor), found->second});
    by_name.erase(found);
  }
  // A tensor without a role would change the answer if it were not left out: refuse rather than guess.
  for (const auto& [name, tensor] : by_name) {
    if (is_redundant(name, files)) continue;
    fail(ErrorCode::kUnsupported, "{}: tensor {} has no role in a {} model as configured", files.path, tensor->describe(),
         files.config.family);
  }
  return placements;
}

// A matrix as it lies in the file.
TensorView in_file(const Placement& p) {
  // Views are of const memory by contract; TensorView has one pointer type for both.
  return TensorView(const_cast<std::byte*>(p.source->data.data()), p.source->dtype, {p.expected.rows, p.expected.columns});
}

// Decides who is copied. Returns the bytes of the buffer.
std::int64_t lay_out(std::vector<Placement>& placements, const ModelConfig& config, const Weights& weights,
                     const Backend& backend) {
  const MatrixUse of_embedding = config.tied_embeddings ? MatrixUse::kBoth : MatrixUse::kLookup;
  std::int64_t total = 0;
  for (Placement& p : placements) {
    if (p.expected.is_vector()) {
      p.form.dtype = p.expected.is_norm ? DType::kF32 : backend.activation_dtype();
      p.form.num_bytes = row_bytes(p.form.dtype, p.expected.rows);
    } else {
      p.form = backend.matrix_form(in_file(p), p.expected.place == &weights.embedding ? of_embedding : MatrixUse::kProduct);
      if (p.form.in_place && is_aligned(*p.source)) continue;
    }
    p.offset = total;
    total += round_up(p.form.num_bytes, kPlaceAlignment);
  }
  return total;
}

// Norms and biases widened, Gemma's norms as the factor itself.
std::vector<float> widen(const Placement& p, bool add_one) {
  std::vector<float> values(static_cast<std::size_t>(p.expected.rows));
  dequantize_row(p.source->dtype, p.source->data.data(), values.data(), p.expected.rows);
  if (add_one) {
    for (float& value : values) value += 1.0f;
  }
  return values;
}

std::vector<std::uint16_t> narrowed(const std::vector<float>& values, DType type) {
  std::vector<std::uint16_t> bits;
  bits.reserve(values.size());
  for (const float value : values) bits.push_back(narrow(value, type));
  return bits;
}

// Piece by piece, each of which leaves the memory again once it is converted, so that a large matrix is not there twice.
void convert(const TensorView& to, const TensorView& from, Backend& backend) {
  constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;
  const std::int64_t bytes = row_bytes(from.dtype, from.dim(1));
  const std::int64_t piece = round_up(kPieceBytes / std::max<std::int64_t>(bytes, 1) + 1, kPieceRows);
  for (std::int64_t first = 0; first < from.dim(0); first += piece) {
    const TensorView rows = from.rows(first, std::min(piece, from.dim(0) - first));
    backend.upload_matrix(to.rows(first, rows.dim(0)), rows);
    give_back_pages({rows.as<const std::byte>(), static_cast<std::size_t>(rows.num_bytes())});
  }
}

void fill(const Placement& p, bool add_one, std::byte* buffer, Backend& backend) {
  if (p.expected.is_vector()) {
    const std::vector<float> values = widen(p, add_one && p.expected.is_norm);
    const TensorView vector(buffer + p.offset, p.form.dtype, {p.expected.rows});
    if (p.form.dtype == DType::kF32) {
      backend.upload(vector.data, values.data(), values.size() * sizeof(float));
    } else {
      const std::vector<std::uint16_t> bits = narrowed(values, p.form.dtype);
      backend.upload(vector.data, bits.data(), bits.size() * sizeof(bits.front()));
    }
    *p.expected.place = vector;
    return;
  }
  TensorView matrix = in_file(p);
  if (p.offset >= 0) {
    matrix = TensorView(buffer + p.offset, p.form.dtype, {p.expected.rows, p.expected.columns});
    matrix.layout = p.form.layout;
    convert(matrix, in_file(p), backend);
  }
  *p.expected.place = matrix;
}

// Hugging Face multiplies by a constant of the embedding's type.
float rounded_to(DType type, float value) {
  return type == DType::kBF16 || type == DType::kF16 ? widen(narrow(value, type), type) : value;
}

struct Storage {
  std::shared_ptr<const void> files;
  DeviceBuffer buffer;
};

}  // namespace

std::vector<PlannedWeight> plan_weights(const ModelFiles& files, const Backend& backend) {
  Weights places;
  std::vector<Placement> placements = match_tensors(files, expected_tensors(files.config, files.naming, places));
  lay_out(placements, files.config, places, backend);
  std::vector<PlannedWeight> planned;
  for (const Placement& p : placements) planned.push_back({p.source, p.form});
  return planned;
}

LoadedModel load_model(const std::string& path, Backend& backend) {
  ModelFiles files = open_model(path);
  LoadedModel model;
  Weights& weights = model.weights;
  std::vector<Placement> placements = match_tensors(files, expected_tensors(files.config, files.naming, weights));
  const std::int64_t buffer_bytes = lay_out(placements, files.config, weights, backend);

  auto storage = std::make_shared<Storage>();
  storage->files = files.storage;
  if (buffer_bytes > 0) storage->buffer = backend.allocate(static_cast<std::size_t>(buffer_bytes));
  const bool add_one = files.naming == Naming::kHuggingFace && files.config.is_gemma();
  for (const Placement& p : placements) {
    fill(p, add_one, static_cast<std::byte*>(storage->buffer.data()), backend);
    weights.num_bytes += p.form.num_bytes;
  }
  backend.synchronize();
  if (files.config.tied_embeddings) weights.head = weights.embedding;
  if (files.naming == Naming::kHuggingFace && files.config.is_gemma()) {
    files.config.embedding_scale = rounded_to(weights.embedding.dtype, files.config.embedding_scale);
  }
  weights.storage = std::move(storage);
  model.config = std::move(files.config);
  return model;
}

}  // namespace quire
