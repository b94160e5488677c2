#include "tests/support/file_writers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "core/check.h"

namespace quire::test {

void append(Bytes& out, std::span<const std::byte> bytes) {
  const std::size_t size = out.size();
  out.resize(size + bytes.size());
  std::copy(bytes.begin(), bytes.end(), out.begin() + static_cast<std::ptrdiff_t>(size));
}

void append(Bytes& out, std::string_view text) {
  append(out, static_cast<std::uint64_t>(text.size()));
  append(out, std::as_bytes(std::span(text)));
}

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  QUIRE_CHECK_MSG(file.good(), "cannot write {}", path.string());
}

void write_file(const std::filesystem::path& path, std::string_view text) { write_file(path, std::as_bytes(std::span(text))); }

std::uint32_t gguf_type_id(DType type) {
  switch (type) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ5_0:
      return 6;
    case DType::kQ5_1:
      return 7;
    case DType::kQ8_0:
      return 8;
    case DType::kQ4_K:
      return 12;
    case DType::kQ5_K:
      return 13;
    case DType::kQ6_K:
      return 14;
    case DType::kBF16:
      return 30;
    case DType::kI32:
      return 26;
    case DType::kI64:
      return 27;
    case DType::kU8:
      break;
  }
  fail_check("a type of the format", to_string(type));
}

void GgufWriter::begin(std::string_view key, GgufType type) {
  ++num_values_;
  append(values_, key);
  append(values_, type);
}

void GgufWriter::begin_array(std::string_view key, GgufType type, std::size_t count) {
  begin(key, GgufType::kArray);
  append(values_, type);
  append(values_, static_cast<std::uint64_t>(count));
}

void GgufWriter::add(std::string_view key, bool value) {
  begin(key, GgufType::kBool);
  append(values_, static_cast<std::uint8_t>(value));
}

void GgufWriter::add(std::string_view key, std::string_view value) {
  begin(key, GgufType::kString);
  append(values_, value);
}

void GgufWriter::add_array(std::string_view key, const std::vector<std::string>& elements) {
  begin_array(key, GgufType::kString, elements.size());
  for (const std::string& element : elements) append(values_, std::string_view(element));
}

void GgufWriter::add_bools(std::string_view key, const std::vector<bool>& elements) {
  begin_array(key, GgufType::kBool, elements.size());
  for (const bool element : elements) append(values_, static_cast<std::uint8_t>(element));
}

Bytes GgufWriter::finish(std::uint32_t alignment, std::uint32_t version) const {
  const auto pad = [alignment](Bytes& bytes) { bytes.resize((bytes.size() + alignment - 1) / alignment * alignment); };
  Bytes out;
  append(out, std::as_bytes(std::span("GGUF", 4)));
  append(out, version);
  append(out, static_cast<std::uint64_t>(tensors_.size()));
  append(out, num_values_);
  append(out, std::span<const std::byte>(values_));
  Bytes data;
  for (const TensorBytes& tensor : tensors_) {
    append(out, std::string_view(tensor.name));
    append(out, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) append(out, *dim);  // contiguous dimension first
    append(out, gguf_type_id(tensor.type));
    append(out, static_cast<std::uint64_t>(data.size()));
    append(data, std::span<const std::byte>(tensor.data));
    pad(data);
  }
  pad(out);
  append(out, std::span<const std::byte>(data));
  return out;
}

Bytes safetensors_bytes(const std::vector<TensorBytes>& tensors, bool pad) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  Bytes data;
  for (const TensorBytes& tensor : tensors) {
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.name, to_string(tensor.type),
                          fmt::join(tensor.shape, ","), data.size(), data.size() + tensor.data.size());
    append(data, std::span<const std::byte>(tensor.data));
  }
  header += '}';
  const std::size_t wanted = pad ? 0 : 1;
  while (header.size() % 8 != wanted) header += ' ';
  Bytes out;
  append(out, std::string_view(header));
  append(out, std::span<const std::byte>(data));
  return out;
}

Bytes safetensors_bytes(std::string_view header, std::size_t data_bytes) {
  Bytes out;
  append(out, header);
  out.resize(out.size() + data_bytes);
  return out;
}

}  // namespace quire::test
