#include "model/safetensors.h"

#include <boost/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <tuple>
#include <unordered_set>

#include "core/check.h"
#include "core/math.h"
#include "model/byte_cursor.h"
#include "model/mapped_file.h"
#include "model/strict_json.h"

namespace quire {
namespace {

namespace json = boost::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kMaxIndexBytes = 100'000'000;
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";

std::string_view view(json::string_view text) { return {text.data(), text.size()}; }

// A JSON integer that is not negative; what Boost keeps as a double (fractions, exponents, beyond 64 bits) is none.
std::uint64_t unsigned_integer(const json::value& value, std::string_view file, std::string_view tensor, std::string_view field) {
  if (value.is_uint64()) return value.get_uint64();
  if (value.is_int64() && value.get_int64() >= 0) return static_cast<std::uint64_t>(value.get_int64());
  fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has {} {}, expected a non-negative integer", file, tensor, field,
       json::serialize(value));
}

const json::value& field_of(const json::object& record, json::string_view field, std::string_view file, std::string_view tensor) {
  const json::value* value = record.if_contains(field);
  if (value == nullptr) fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has no '{}'", file, tensor, view(field));
  return *value;
}

DType read_dtype(const json::object& record, std::string_view file, std::string_view tensor) {
  const json::value& dtype = field_of(record, "dtype", file, tensor);
  if (!dtype.is_string()) fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has dtype {}", file, tensor, json::serialize(dtype));
  const std::string_view name = view(dtype.get_string());
  for (const DType known : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == to_string(known)) return known;
  }
  fail(ErrorCode::kUnsupported, "{}: tensor '{}' has dtype {}, supported are F32, F16 and BF16", file, tensor, name);
}

// Shape and the number of bytes that it implies.
std::int64_t read_shape(const json::object& record, std::string_view file, FileTensor& tensor) {
  const json::value& shape = field_of(record, "shape", file, tensor.name);
  if (!shape.is_array() || shape.get_array().size() > TensorView::kMaxRank) {
    fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has shape {}, expected up to {} dimensions", file, tensor.name,
         json::serialize(shape), TensorView::kMaxRank);
  }
  std::optional<std::int64_t> num_bytes = block_bytes(tensor.dtype);
  for (const json::value& dim : shape.get_array()) {
    const std::uint64_t size = unsigned_integer(dim, file, tensor.name, "dimension");
    tensor.shape[static_cast<std::size_t>(tensor.rank++)] = static_cast<std::int64_t>(size);
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) num_bytes.reset();
    if (num_bytes) num_bytes = checked_mul(*num_bytes, static_cast<std::int64_t>(size));
  }
  if (!num_bytes) {
    fail(ErrorCode::kInvalidFile, "{}: tensor '{}' with shape {} has more than 2^63 - 1 bytes", file, tensor.name,
         json::serialize(shape));
  }
  return *num_bytes;
}

struct Record {
  FileTensor tensor;
  std::uint64_t begin = 0, end = 0;  // in the byte buffer
};

Record read_record(json::string_view name, const json::value& value, std::string_view file) {
  Record record;
  record.tensor.name = view(name);
  if (!value.is_object()) fail(ErrorCode::kInvalidFile, "{}: tensor '{}' is not an object", file, record.tensor.name);
  const json::object& fields = value.get_object();
  record.tensor.dtype = read_dtype(fields, file, record.tensor.name);
  const std::int64_t num_bytes = read_shape(fields, file, record.tensor);
  const json::value& offsets = field_of(fields, "data_offsets", file, record.tensor.name);
  if (!offsets.is_array() || offsets.get_array().size() != 2) {
    fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has data_offsets {}", file, record.tensor.name, json::serialize(offsets));
  }
  record.begin = unsigned_integer(offsets.get_array()[0], file, record.tensor.name, "data offset");
  record.end = unsigned_integer(offsets.get_array()[1], file, record.tensor.name, "data offset");
  if (record.end < record.begin || record.end - record.begin != static_cast<std::uint64_t>(num_bytes)) {
    fail(ErrorCode::kInvalidFile, "{}: tensor {} needs {} bytes, its data_offsets are [{}, {}]", file, record.tensor.describe(),
         num_bytes, record.begin, record.end);
  }
  return record;
}

void check_metadata(const json::value& metadata, std::string_view file) {
  const bool strings = metadata.is_object() && std::all_of(metadata.get_object().begin(), metadata.get_object().end(),
                                                           [](const auto& entry) { return entry.value().is_string(); });
  if (!strings) fail(ErrorCode::kInvalidFile, "{}: __metadata__ is not an object of strings", file);
}

// Sorted by their data, the tensors cover the buffer from its first to its last byte.
std::vector<FileTensor> place(std::vector<Record> records, std::span<const std::byte> data, std::string_view file) {
  std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
    return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
  });
  std::vector<FileTensor> tensors;
  tensors.reserve(records.size());
  std::uint64_t expected = 0;
  for (Record& record : records) {
    if (record.begin != expected) {
      fail(ErrorCode::kInvalidFile, "{}: tensor '{}' begins at data offset {}, expected {}: a hole or an overlap", file,
           record.tensor.name, record.begin, expected);
    }
    if (record.end > data.size()) {
      fail(ErrorCode::kInvalidFile, "{}: tensor '{}' ends at data offset {}, the file has {} bytes of data", file,
           record.tensor.name, record.end, data.size());
    }
    record.tensor.data =
        data.subspan(static_cast<std::size_t>(record.begin), static_cast<std::size_t>(record.end - record.begin));
    expected = record.end;
    tensors.push_back(std::move(record.tensor));
  }
  if (expected != data.size()) {
    fail(ErrorCode::kInvalidFile, "{}: {} bytes of data, the tensors cover {}", file, data.size(), expected);
  }
  return tensors;
}

// The files that the index names, each with the tensors it should hold.
std::map<std::string, std::vector<std::string>> read_index(const std::string& path) {
  const json::value index = parse_strict_json(read_text_file(path, kMaxIndexBytes), path);
  const json::value* map = index.is_object() ? index.get_object().if_contains("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) fail(ErrorCode::kInvalidFile, "{}: no object 'weight_map'", path);
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map->get_object()) {
    const std::string_view name = file.is_string() ? view(file.get_string()) : std::string_view();
    // A plain name: it must not lead out of the directory.
    if (name.empty() || name.front() == '.' || name.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
      fail(ErrorCode::kInvalidFile, "{}: weight_map has {} for '{}', expected a plain file name", path, json::serialize(file),
           view(tensor));
    }
    files[std::string(name)].emplace_back(view(tensor));
  }
  return files;
}

}  // namespace

std::vector<FileTensor> parse_safetensors(std::span<const std::byte> bytes, std::string_view file) {
  ByteCursor cursor(bytes, file);
  const auto header_bytes = cursor.read_count(1, kMaxHeaderBytes, "the header length");
  const auto header = cursor.take(header_bytes, "the header");
  if (header.empty() || header[0] != std::byte{'{'})
    fail(ErrorCode::kInvalidFile, "{}: the header does not begin with '{{'", file);
  const json::value value = parse_strict_json({reinterpret_cast<const char*>(header.data()), header.size()}, file);
  std::vector<Record> records;
  records.reserve(value.get_object().size());
  for (const auto& [name, record] : value.get_object()) {
    if (name == "__metadata__") {
      check_metadata(record, file);
    } else {
      records.push_back(read_record(name, record, file));
    }
  }
  return place(std::move(records), cursor.take(cursor.remaining(), "the data"), file);
}

SafetensorsCheckpoint open_safetensors(const std::string& directory) {
  const std::filesystem::path base(directory);
  const std::string index = (base / kIndexName).string();
  std::map<std::string, std::vector<std::string>> files;
  if (std::filesystem::exists(index)) {
    files = read_index(index);
  } else {
    files[std::string(kSingleName)] = {};
  }
  SafetensorsCheckpoint checkpoint;
  std::vector<std::shared_ptr<const void>> mappings;
  std::unordered_set<std::string> seen;
  for (const auto& [file, expected] : files) {
    const std::string path = (base / file).string();
    auto mapping = MappedFile::open(path);
    std::vector<FileTensor> tensors = parse_safetensors(mapping->bytes(), path);
    std::unordered_set<std::string> here;
    for (FileTensor& tensor : tensors) {
      here.insert(tensor.name);
      if (!seen.insert(tensor.name).second)
        fail(ErrorCode::kInvalidFile, "{}: tensor '{}' is in another shard too", path, tensor.name);
      checkpoint.tensors.push_back(std::move(tensor));
    }
    for (const std::string& name : expected) {
      if (!here.contains(name)) fail(ErrorCode::kInvalidFile, "{}: no tensor '{}', which {} places here", path, name, kIndexName);
    }
    mappings.push_back(std::move(mapping));
  }
  checkpoint.storage = std::make_shared<const std::vector<std::shared_ptr<const void>>>(std::move(mappings));
  return checkpoint;
}

}  // namespace quire
