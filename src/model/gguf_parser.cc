// The container, in file order: magic, version, tensor count, value count, values, tensor records, padding, data. Nothing is
// allocated from a count that the rest of the file could not hold, sizes are multiplied and added with overflow checks, and
// there is no recursion.
#include "model/gguf_parser.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/math.h"
#include "core/utf8.h"
#include "model/byte_cursor.h"

namespace quire {
namespace {

constexpr std::uint64_t kMaxValues = 65'536;
constexpr std::uint64_t kMaxTensors = 1'048'576;
constexpr std::uint64_t kMaxArrayElements = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxStringBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kMaxKeyBytes = 65'535;
constexpr std::uint64_t kMaxTensorNameBytes = 63;
constexpr std::uint32_t kMaxAlignment = 65'536;
constexpr std::uint32_t kDefaultAlignment = 32;
constexpr std::size_t kHeaderBytes = 24;  // magic, version, both counts
// The smallest possible records: an empty key and a one-byte value; an empty name and one dimension.
constexpr std::size_t kMinValueBytes = 13;
constexpr std::size_t kMinTensorBytes = 24;

// Bytes of one element, 0 for those without a fixed size.
std::size_t element_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

GgufType read_type(ByteCursor& cursor, std::string_view key) {
  const auto id = cursor.read<std::uint32_t>("a value type");
  if (id > static_cast<std::uint32_t>(GgufType::kF64)) {
    fail(ErrorCode::kInvalidFile, "{}: metadata '{}' has unknown value type {}", cursor.file(), key, id);
  }
  return static_cast<GgufType>(id);
}

void read_elements(ByteCursor& cursor, std::string_view key, GgufValue& value) {
  if (value.type == GgufType::kString) {
    const ByteCursor start = cursor;
    for (std::uint64_t i = 0; i < value.count; ++i) cursor.read_string(kMaxStringBytes, key);
    value.bytes = ByteCursor(start).take(cursor.offset() - start.offset(), key);
    return;
  }
  // No overflow: count is at most 2^30, or 1.
  value.bytes = cursor.take(value.count * element_bytes(value.type), key);
  if (value.type != GgufType::kBool) return;
  const auto wrong = std::find_if(value.bytes.begin(), value.bytes.end(), [](std::byte b) { return b > std::byte{1}; });
  if (wrong != value.bytes.end()) {
    fail(ErrorCode::kInvalidFile, "{}: metadata '{}' holds {} as a bool", cursor.file(), key, std::to_integer<int>(*wrong));
  }
}

GgufValue read_value(ByteCursor& cursor, std::string_view key) {
  GgufValue value;
  value.type = read_type(cursor, key);
  if (value.type == GgufType::kArray) {
    value.is_array = true;
    value.type = read_type(cursor, key);
    if (value.type == GgufType::kArray) {
      fail(ErrorCode::kInvalidFile, "{}: metadata '{}' is an array of arrays", cursor.file(), key);
    }
    const std::size_t min_bytes = value.type == GgufType::kString ? sizeof(std::uint64_t) : element_bytes(value.type);
    value.count = cursor.read_count(min_bytes, kMaxArrayElements, key);
  }
  read_elements(cursor, key, value);
  return value;
}

void read_values(ByteCursor& cursor, std::uint64_t count, GgufParts& parts) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string_view key = cursor.read_string(kMaxKeyBytes, "a metadata key");
    if (key.empty()) fail(ErrorCode::kInvalidFile, "{}: metadata key {} is empty", cursor.file(), i);
    if (!is_valid_utf8(key)) fail(ErrorCode::kInvalidFile, "{}: metadata key {} is not UTF-8", cursor.file(), i);
    const GgufValue value = read_value(cursor, key);
    if (!parts.values.emplace(key, value).second) {
      fail(ErrorCode::kInvalidFile, "{}: metadata '{}' occurs twice", cursor.file(), key);
    }
  }
}

std::uint32_t alignment_of(const GgufParts& parts, std::string_view file) {
  const auto found = parts.values.find("general.alignment");
  if (found == parts.values.end()) return kDefaultAlignment;
  const GgufValue& value = found->second;
  if (value.is_array || value.type != GgufType::kU32) {
    fail(ErrorCode::kInvalidFile, "{}: metadata 'general.alignment' is {}{}, expected u32", file,
         value.is_array ? "an array of " : "", to_string(value.type));
  }
  std::uint32_t alignment;
  std::memcpy(&alignment, value.bytes.data(), sizeof(alignment));
  if (!is_power_of_two(alignment) || alignment < 8 || alignment > kMaxAlignment) {
    fail(ErrorCode::kInvalidFile, "{}: metadata 'general.alignment' is {}, expected a power of two from 8 to {}", file, alignment,
         kMaxAlignment);
  }
  return alignment;
}

struct TypeName {
  std::uint32_t id;
  const char* name;
};
// Types of the format that quire does not read, to refuse them by name.
constexpr TypeName kOtherTypes[] = {
    {4, "Q4_2"},     {5, "Q4_3"},    {9, "Q8_1"},      {10, "Q2_K"},     {11, "Q3_K"},     {15, "Q8_K"},
    {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},  {19, "IQ1_S"},    {20, "IQ4_NL"},   {21, "IQ3_S"},
    {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},       {25, "I16"},      {26, "I32"},      {27, "I64"},
    {28, "F64"},     {29, "IQ1_M"},  {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"}, {34, "TQ1_0"},
    {35, "TQ2_0"},   {39, "MXFP4"},  {40, "NVFP4"},    {41, "Q1_0"},     {42, "Q2_0"},
};

DType tensor_type(std::uint32_t id, std::string_view file, std::string_view tensor) {
  switch (id) {
    case 0:
      return DType::kF32;
    case 1:
      return DType::kF16;
    case 2:
      return DType::kQ4_0;
    case 3:
      return DType::kQ4_1;
    case 6:
      return DType::kQ5_0;
    case 7:
      return DType::kQ5_1;
    case 8:
      return DType::kQ8_0;
    case 12:
      return DType::kQ4_K;
    case 13:
      return DType::kQ5_K;
    case 14:
      return DType::kQ6_K;
    case 30:
      return DType::kBF16;
    default:
      break;
  }
  const auto* other = std::find_if(std::begin(kOtherTypes), std::end(kOtherTypes), [id](TypeName t) { return t.id == id; });
  fail(ErrorCode::kUnsupported, "{}: tensor '{}' has type {} ({}), which is not supported", file, tensor, id,
       other == std::end(kOtherTypes) ? "unknown" : other->name);
}

// One tensor record; the number of bytes that it implies is returned, its offset in `offset`.
std::int64_t read_tensor(ByteCursor& cursor, std::string_view name, FileTensor& tensor, std::uint64_t& offset) {
  const std::string_view file = cursor.file();
  const auto rank = cursor.read<std::uint32_t>("a tensor's number of dimensions");
  if (rank < 1 || rank > TensorView::kMaxRank) {
    fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has {} dimensions, expected 1 to {}", file, name, rank, TensorView::kMaxRank);
  }
  tensor.name = name;
  tensor.rank = static_cast<int>(rank);
  std::optional<std::int64_t> num_elements = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {  // the file has the contiguous dimension first, TensorView last
    const auto dim = cursor.read<std::uint64_t>("a tensor's dimension");
    if (dim < 1 || dim > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has dimension {} of {}", file, name, i, dim);
    }
    tensor.shape[rank - 1 - i] = static_cast<std::int64_t>(dim);
    if (num_elements) num_elements = checked_mul(*num_elements, static_cast<std::int64_t>(dim));
  }
  tensor.dtype = tensor_type(cursor.read<std::uint32_t>("a tensor's type"), file, name);
  offset = cursor.read<std::uint64_t>("a tensor's offset");
  if (!num_elements) fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has more than 2^63 - 1 elements", file, name);
  const std::int64_t row = tensor.dim(tensor.rank - 1);
  if (row % block_elements(tensor.dtype) != 0) {
    fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has rows of {} elements, not a multiple of {}'s {}", file, name, row,
         to_string(tensor.dtype), block_elements(tensor.dtype));
  }
  const std::int64_t num_blocks = *num_elements / block_elements(tensor.dtype);
  const auto num_bytes = checked_mul<std::int64_t>(num_blocks, block_bytes(tensor.dtype));
  if (!num_bytes) fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has more than 2^63 - 1 bytes", file, name);
  return *num_bytes;
}

struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t num_bytes = 0;
};

// Offsets are the running sum of padded sizes, as every writer lays them: no holes, no overlap, no order but the file's.
void place_tensors(std::span<const std::byte> data, const std::vector<Extent>& extents, std::uint32_t alignment,
                   std::string_view file, std::vector<FileTensor>& tensors) {
  std::uint64_t expected = 0;  // never beyond data.size() rounded up to alignment: no overflow
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto [offset, num_bytes] = extents[i];
    if (offset != expected) {
      fail(ErrorCode::kInvalidFile, "{}: tensor '{}' has offset {}, expected {} (alignment {})", file, tensors[i].name, offset,
           expected, alignment);
    }
    if (offset > data.size() || num_bytes > data.size() - offset) {
      fail(ErrorCode::kInvalidFile,
           "{}: tensor '{}' needs {} bytes at offset {}, the file has {} bytes of tensor data; is it cut short?", file,
           tensors[i].name, num_bytes, offset, data.size());
    }
    tensors[i].data = data.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(num_bytes));
    expected = round_up<std::uint64_t>(offset + num_bytes, alignment);
  }
}

void read_tensors(ByteCursor& cursor, std::uint64_t count, GgufParts& parts) {
  std::vector<Extent> extents(count);
  parts.tensors.resize(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string_view name = cursor.read_string(kMaxTensorNameBytes, "a tensor name");
    if (name.empty() || !is_valid_utf8(name)) {
      fail(ErrorCode::kInvalidFile, "{}: the name of tensor {} is {}", cursor.file(), i, name.empty() ? "empty" : "not UTF-8");
    }
    const std::int64_t num_bytes = read_tensor(cursor, name, parts.tensors[i], extents[i].offset);
    extents[i].num_bytes = static_cast<std::uint64_t>(num_bytes);
    if (!parts.tensor_index.emplace(name, i).second) {
      fail(ErrorCode::kInvalidFile, "{}: tensor '{}' occurs twice", cursor.file(), name);
    }
  }
  const std::uint32_t alignment = alignment_of(parts, cursor.file());
  const std::uint64_t padding = round_up<std::uint64_t>(cursor.offset(), alignment) - cursor.offset();
  // A file without tensors may end where its metadata ends.
  cursor.take(std::min<std::uint64_t>(padding, cursor.remaining()), "padding");
  place_tensors(cursor.take(cursor.remaining(), "tensor data"), extents, alignment, cursor.file(), parts.tensors);
}

}  // namespace

std::string_view to_string(GgufType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<std::size_t>(type)];
}

GgufParts parse_gguf(std::span<const std::byte> bytes, std::string_view file) {
  ByteCursor cursor(bytes, file);
  if (bytes.size() < kHeaderBytes) fail(ErrorCode::kInvalidFile, "{}: {} bytes are too few for a GGUF file", file, bytes.size());
  const auto magic = cursor.take(4, "the magic");
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) fail(ErrorCode::kInvalidFile, "{}: not a GGUF file", file);
  const auto version = cursor.read<std::uint32_t>("the version");
  if ((version & 0xFFFF) == 0) fail(ErrorCode::kUnsupported, "{}: a big-endian GGUF file (version {:#010x})", file, version);
  if (version != 2 && version != 3) fail(ErrorCode::kUnsupported, "{}: GGUF version {}, supported are 2 and 3", file, version);
  GgufParts parts;
  const auto num_tensors = cursor.read_count(kMinTensorBytes, kMaxTensors, "the tensor count");
  const auto num_values = cursor.read_count(kMinValueBytes, kMaxValues, "the metadata count");
  read_values(cursor, num_values, parts);
  if (num_tensors > cursor.remaining() / kMinTensorBytes) {
    fail(ErrorCode::kInvalidFile, "{}: {} tensors do not fit in the {} bytes after the metadata", file, num_tensors,
         cursor.remaining());
  }
  read_tensors(cursor, num_tensors, parts);
  return parts;
}

}  // namespace quire
