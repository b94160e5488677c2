// Writers of the two model formats, for tests: GgufWriter and safetensors_bytes. They write what they are told, right or wrong,
// so that tests of refusals can use them too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "model/gguf.h"

namespace quire::test {

using Bytes = std::vector<std::byte>;

void append(Bytes& out, std::span<const std::byte> bytes);
void append(Bytes& out, std::string_view text);
template <typename T>
requires std::is_arithmetic_v<T> || std::is_enum_v<T>
void append(Bytes& out, T value) { append(out, std::as_bytes(std::span(&value, 1))); }

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_file(const std::filesystem::path& path, std::string_view text);

struct TensorBytes {
  std::string name;
  DType type = DType::kF32;
  std::vector<std::int64_t> shape;  // outermost first
  Bytes data;
};

class GgufWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void add(std::string_view key, T value) {
    begin(key, type_of<T>());
    append(values_, value);
  }
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void add_array(std::string_view key, const std::vector<T>& elements) {
    begin_array(key, type_of<T>(), elements.size());
    for (const T element : elements) append(values_, element);
  }
  void add_array(std::string_view key, const std::vector<std::string>& elements);
  void add_bools(std::string_view key, const std::vector<bool>& elements);
  void add_tensor(TensorBytes tensor) { tensors_.push_back(std::move(tensor)); }

  // The bytes of the file. `alignment` other than 32 has to be among the values too.
  Bytes finish(std::uint32_t alignment = 32, std::uint32_t version = 3) const;

 private:
  template <typename T>
  static constexpr GgufType type_of() {
    if constexpr (std::is_same_v<T, float>) return GgufType::kF32;
    if constexpr (std::is_same_v<T, double>) return GgufType::kF64;
    constexpr bool kSigned = std::is_signed_v<T>;
    switch (sizeof(T)) {
      case 1:
        return kSigned ? GgufType::kI8 : GgufType::kU8;
      case 2:
        return kSigned ? GgufType::kI16 : GgufType::kU16;
      case 4:
        return kSigned ? GgufType::kI32 : GgufType::kU32;
      default:
        return kSigned ? GgufType::kI64 : GgufType::kU64;
    }
  }
  void begin(std::string_view key, GgufType type);
  void begin_array(std::string_view key, GgufType type, std::size_t count);

  std::uint64_t num_values_ = 0;
  Bytes values_;
  std::vector<TensorBytes> tensors_;
};

// Length, header and data. With `pad` the data begin at a multiple of 8, as most writers have it; without, at an odd offset.
Bytes safetensors_bytes(const std::vector<TensorBytes>& tensors, bool pad = true);
// A header text, right or wrong, and data.
Bytes safetensors_bytes(std::string_view header, std::size_t data_bytes);

std::uint32_t gguf_type_id(DType type);

}  // namespace quire::test
