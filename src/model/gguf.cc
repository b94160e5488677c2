#include "model/gguf.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include "core/check.h"
#include "model/gguf_parser.h"
#include "model/mapped_file.h"

namespace quire {
namespace {

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

[[noreturn]] void fail_type(const std::string& path, std::string_view key, const GgufValue& value, std::string_view expected) {
  fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is {}{}, expected {}", path, key, value.is_array ? "an array of " : "",
       to_string(value.type), expected);
}

bool is_integer(GgufType type) { return type <= GgufType::kI32 || type == GgufType::kU64 || type == GgufType::kI64; }
bool is_float(GgufType type) { return type == GgufType::kF32 || type == GgufType::kF64; }

// Element `index` of an integer value, whatever its width. nullopt: a u64 beyond the signed range.
std::optional<std::int64_t> load_integer(const GgufValue& value, std::size_t index) {
  switch (value.type) {
    case GgufType::kU8:
      return load<std::uint8_t>(value.bytes, index);
    case GgufType::kI8:
      return load<std::int8_t>(value.bytes, index);
    case GgufType::kU16:
      return load<std::uint16_t>(value.bytes, index);
    case GgufType::kI16:
      return load<std::int16_t>(value.bytes, index);
    case GgufType::kU32:
      return load<std::uint32_t>(value.bytes, index);
    case GgufType::kI32:
      return load<std::int32_t>(value.bytes, index);
    case GgufType::kI64:
      return load<std::int64_t>(value.bytes, index);
    default:
      break;
  }
  const auto unsigned_value = load<std::uint64_t>(value.bytes, index);
  if (unsigned_value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return static_cast<std::int64_t>(unsigned_value);
}

std::int64_t checked_integer(const std::string& path, std::string_view key, const GgufValue& value, std::size_t index) {
  const auto integer = load_integer(value, index);
  if (!integer) fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is beyond 2^63 - 1", path, key);
  return *integer;
}

template <typename T>
T required(std::optional<T> value, const std::string& path, std::string_view key) {
  if (!value) fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is missing", path, key);
  return *value;
}

// "model-00002-of-00005.gguf" for part 1 of 5.
std::string part_suffix(std::int64_t index, std::int64_t count) { return fmt::format("-{:05}-of-{:05}.gguf", index + 1, count); }

}  // namespace

GgufFile GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.path_ = std::move(name);
  GgufParts parts = parse_gguf(bytes, file.path_);
  file.values_ = std::move(parts.values);
  file.tensors_ = std::move(parts.tensors);
  file.tensor_index_ = std::move(parts.tensor_index);
  return file;
}

GgufFile GgufFile::open(const std::string& path) {
  const auto open_one = [](const std::string& part_path) {
    auto mapping = MappedFile::open(part_path);
    GgufFile file = parse(mapping->bytes(), part_path);
    file.mappings_.push_back(std::move(mapping));
    return file;
  };
  GgufFile file = open_one(path);
  const std::int64_t count = file.find_integer("split.count").value_or(1);
  if (count == 1) return file;
  if (count < 1 || count > std::numeric_limits<std::uint16_t>::max()) {
    fail(ErrorCode::kInvalidFile, "{}: metadata 'split.count' is {}", path, count);
  }
  const std::int64_t index = file.integer("split.no");
  if (index < 0 || index >= count) fail(ErrorCode::kInvalidFile, "{}: metadata 'split.no' is {} of {}", path, index, count);
  const std::string suffix = part_suffix(index, count);
  if (!path.ends_with(suffix)) {
    fail(ErrorCode::kInvalidFile, "{}: part {} of {} of a split model, but its name does not end in {}", path, index + 1, count,
         suffix);
  }
  const std::string stem = path.substr(0, path.size() - suffix.size());
  GgufFile whole = index == 0 ? std::move(file) : open_one(stem + part_suffix(0, count));
  for (std::int64_t i = 0; i < count; ++i) {
    GgufFile part = i == 0 ? GgufFile() : open_one(stem + part_suffix(i, count));
    const GgufFile& checked = i == 0 ? whole : part;
    if (checked.integer("split.no") != i || checked.integer("split.count") != count) {
      fail(ErrorCode::kInvalidFile, "{}: says it is part {} of {}, its name says {} of {}", checked.path_,
           checked.integer("split.no") + 1, checked.integer("split.count"), i + 1, count);
    }
    if (i > 0) whole.add_part(std::move(part));
  }
  const std::int64_t num_tensors = whole.integer("split.tensors.count");
  if (num_tensors != static_cast<std::int64_t>(whole.tensors_.size())) {
    fail(ErrorCode::kInvalidFile, "{}: metadata 'split.tensors.count' is {}, the parts hold {}", whole.path_, num_tensors,
         whole.tensors_.size());
  }
  return whole;
}

void GgufFile::add_part(GgufFile part) {
  const std::size_t base = tensors_.size();
  for (const auto& [name, index] : part.tensor_index_) {
    if (!tensor_index_.emplace(name, base + index).second) {
      fail(ErrorCode::kInvalidFile, "{}: tensor '{}' is in an earlier part too", part.path_, name);
    }
  }
  for (FileTensor& tensor : part.tensors_) tensors_.push_back(std::move(tensor));
  for (auto& mapping : part.mappings_) mappings_.push_back(std::move(mapping));
}

const GgufValue* GgufFile::find_value(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> GgufFile::find_integer(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || !is_integer(value->type)) fail_type(path_, key, *value, "an integer");
  return checked_integer(path_, key, *value, 0);
}

std::optional<double> GgufFile::find_number(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || !(is_float(value->type) || is_integer(value->type))) fail_type(path_, key, *value, "a number");
  if (is_integer(value->type)) return static_cast<double>(checked_integer(path_, key, *value, 0));
  const double number = value->type == GgufType::kF32 ? load<float>(value->bytes, 0) : load<double>(value->bytes, 0);
  if (!std::isfinite(number)) fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is {}", path_, key, number);
  return number;
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type != GgufType::kBool) fail_type(path_, key, *value, "a bool");
  return value->bytes[0] != std::byte{0};
}

std::optional<std::string_view> GgufFile::find_string(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type != GgufType::kString) fail_type(path_, key, *value, "a string");
  return std::string_view(reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size()).substr(sizeof(std::uint64_t));
}

std::optional<std::vector<std::int64_t>> GgufFile::find_integers(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || !is_integer(value->type)) fail_type(path_, key, *value, "an array of integers");
  std::vector<std::int64_t> integers(value->count);
  for (std::size_t i = 0; i < integers.size(); ++i) integers[i] = checked_integer(path_, key, *value, i);
  return integers;
}

std::optional<std::vector<float>> GgufFile::find_floats(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || !is_float(value->type)) fail_type(path_, key, *value, "an array of floats");
  std::vector<float> floats(value->count);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    floats[i] = value->type == GgufType::kF32 ? load<float>(value->bytes, i) : static_cast<float>(load<double>(value->bytes, i));
    if (std::isnan(floats[i])) fail(ErrorCode::kInvalidFile, "{}: metadata '{}' element {} is not a number", path_, key, i);
  }
  return floats;
}

std::optional<std::vector<bool>> GgufFile::find_bools(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || value->type != GgufType::kBool) fail_type(path_, key, *value, "an array of bools");
  std::vector<bool> bools(value->count);
  for (std::size_t i = 0; i < bools.size(); ++i) bools[i] = value->bytes[i] != std::byte{0};
  return bools;
}

std::optional<std::vector<std::string_view>> GgufFile::find_strings(std::string_view key) const {
  const GgufValue* value = find_value(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array || value->type != GgufType::kString) fail_type(path_, key, *value, "an array of strings");
  std::vector<std::string_view> strings(value->count);
  std::size_t offset = 0;  // every length was checked when the file was parsed
  for (std::string_view& text : strings) {
    const auto length = static_cast<std::size_t>(load<std::uint64_t>(value->bytes.subspan(offset), 0));
    text = {reinterpret_cast<const char*>(value->bytes.data()) + offset + sizeof(std::uint64_t), length};
    offset += sizeof(std::uint64_t) + length;
  }
  return strings;
}

std::int64_t GgufFile::integer(std::string_view key) const { return required(find_integer(key), path_, key); }
double GgufFile::number(std::string_view key) const { return required(find_number(key), path_, key); }
std::string_view GgufFile::string(std::string_view key) const { return required(find_string(key), path_, key); }

const FileTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

std::shared_ptr<const void> GgufFile::storage() const {
  if (mappings_.empty()) return nullptr;
  return std::make_shared<const std::vector<std::shared_ptr<const void>>>(mappings_);
}

}  // namespace quire
