// GgufFile: a GGUF v2 or v3 model file, checked whole when it is opened: metadata by key, tensors by name, both left in the
// mapped file. A split model opens as one. Fails closed: a file that the format does not allow, or that holds a tensor type
// outside core/dtype.h, is refused with the field, its value and where it stands. Knows nothing of architectures.
// Values are never reinterpreted: an accessor converts from the type that the file declares, or throws Error(kInvalidFile).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/file_tensor.h"

namespace quire {

enum class GgufType : std::uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

struct GgufValue {
  GgufType type = GgufType::kU8;  // of the value, or of an array's elements
  bool is_array = false;
  std::uint64_t count = 1;           // elements
  std::span<const std::byte> bytes;  // the packed elements; a string is its u64 length, then its bytes
};

class GgufFile {
 public:
  // Maps the file; of a split model (name ending in -00001-of-0000N.gguf) any of its files, the others are found beside it.
  static GgufFile open(const std::string& path);
  // Reads one file's bytes in place; they must outlive the result. `name` stands in messages. Does not look for other parts.
  static GgufFile parse(std::span<const std::byte> bytes, std::string name);

  GgufFile(GgufFile&&) = default;
  GgufFile& operator=(GgufFile&&) = default;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  bool contains(std::string_view key) const { return values_.find(key) != values_.end(); }

  // The value of `key`, or nullopt if there is none. Integers of any width and sign; numbers are integers or finite floats;
  // floats in arrays may be infinite, not NaN.
  std::optional<std::int64_t> find_integer(std::string_view key) const;
  std::optional<double> find_number(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> find_integers(std::string_view key) const;
  std::optional<std::vector<float>> find_floats(std::string_view key) const;
  std::optional<std::vector<bool>> find_bools(std::string_view key) const;
  std::optional<std::vector<std::string_view>> find_strings(std::string_view key) const;
  // The same where the key has to be there.
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;
  std::string_view string(std::string_view key) const;
  // The declared type and the raw elements, for callers that accept more than one type; nullptr: no such key.
  const GgufValue* find_value(std::string_view key) const;

  const std::vector<FileTensor>& tensors() const { return tensors_; }  // in file order, part after part
  const FileTensor* find_tensor(std::string_view name) const;
  // Keeps the mapped files alive; null after parse(). Views of tensor data are valid as long as this is held.
  std::shared_ptr<const void> storage() const;

 private:
  GgufFile() = default;
  void add_part(GgufFile part);

  std::string path_;
  std::vector<std::shared_ptr<const void>> mappings_;
  std::unordered_map<std::string_view, GgufValue> values_;  // keys lie in the mapped file
  std::vector<FileTensor> tensors_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;  // names lie in the mapped file
};

}  // namespace quire
