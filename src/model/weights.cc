// From files to Weights, in two passes: check every tensor and decide which are read in place; then fill one buffer of the
// backend with the rest, in the order of the files, some megabytes at a time.
#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>
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
constexpr std::size_t kStretchBytes = std::size_t{8} << 20;  // converted together: fits in caches, and keeps threads busy
constexpr std::size_t kLeastPageBytes = 4096;                // of any system

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

// In the order in which the tensors lie in the files.
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
  std::sort(placements.begin(), placements.end(),
            [](const Placement& a, const Placement& b) { return std::less<>()(a.source->data.data(), b.source->data.data()); });
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

void fill_vector(const Placement& p, bool add_one, Backend& backend) {
  const std::vector<float> values = widen(p, add_one && p.expected.is_norm);
  void* const to = p.expected.place->data;
  if (p.form.dtype == DType::kF32) return backend.upload(to, values.data(), values.size() * sizeof(float));
  const std::vector<std::uint16_t> bits = narrowed(values, p.form.dtype);
  backend.upload(to, bits.data(), bits.size() * sizeof(bits.front()));
}

// What lies one after the other in a file: vectors, and rows of matrices.
struct Stretch {
  std::vector<MatrixUpload> rows;
  std::vector<const Placement*> vectors;
  std::span<const std::byte> bytes;

  // Whether `next` follows: no page, which might be another's, lies between.
  bool continues_with(std::span<const std::byte> next) const {
    const std::byte* const end = bytes.data() + bytes.size();
    return std::less_equal<>()(end, next.data()) && next.data() - end < static_cast<std::ptrdiff_t>(kLeastPageBytes) &&
           bytes.size() + next.size() <= kStretchBytes;
  }
};

// The stretch that `bytes` belong to, the last one or a new one.
Stretch& stretch_of(std::span<const std::byte> bytes, std::vector<Stretch>& stretches) {
  if (stretches.empty() || !stretches.back().continues_with(bytes)) stretches.push_back({{}, {}, bytes.first(0)});
  Stretch& stretch = stretches.back();
  stretch.bytes = {stretch.bytes.data(), bytes.data() + bytes.size()};
  return stretch;
}

void add_rows(const TensorView& to, const TensorView& from, std::vector<Stretch>& stretches) {
  const std::int64_t row = std::max<std::int64_t>(row_bytes(from.dtype, from.dim(1)), 1);
  const std::int64_t most = std::max(static_cast<std::int64_t>(kStretchBytes) / row / kPieceRows, std::int64_t{1}) * kPieceRows;
  for (std::int64_t first = 0; first < from.dim(0); first += most) {
    const TensorView rows = from.rows(first, std::min(most, from.dim(0) - first));
    const std::span bytes(rows.as<const std::byte>(), static_cast<std::size_t>(rows.num_bytes()));
    stretch_of(bytes, stretches).rows.push_back({to.rows(first, rows.dim(0)), rows});
  }
}

// Each stretch leaves the memory again once it is filled from, so that no large part of the files is there twice.
void fill(const std::vector<Stretch>& stretches, bool add_one, Backend& backend) {
  for (const Stretch& stretch : stretches) {
    backend.upload_matrices(stretch.rows);
    for (const Placement* vector : stretch.vectors) fill_vector(*vector, add_one, backend);
    give_back_pages(stretch.bytes);
  }
}

void fill(const std::vector<Placement>& placements, bool add_one, std::byte* buffer, Backend& backend) {
  std::vector<Stretch> stretches;
  for (const Placement& p : placements) {
    TensorView& place = *p.expected.place;
    if (p.expected.is_vector()) {
      place = TensorView(buffer + p.offset, p.form.dtype, {p.expected.rows});
      stretch_of(p.source->data, stretches).vectors.push_back(&p);
    } else if (p.offset < 0) {
      place = in_file(p);
    } else {
      place = TensorView(buffer + p.offset, p.form.dtype, {p.expected.rows, p.expected.columns});
      place.layout = p.form.layout;
      add_rows(place, in_file(p), stretches);
    }
  }
  fill(stretches, add_one, backend);
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
  planned.reserve(placements.size());
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
  fill(placements, add_one, static_cast<std::byte*>(storage->buffer.data()), backend);
  for (const Placement& p : placements) weights.num_bytes += p.form.num_bytes;
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
