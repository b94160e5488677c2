#include "model/file_tensor.h"

#include <fmt/ranges.h>

namespace quire {

std::string FileTensor::describe() const {
  return fmt::format("'{}' {} [{}]", name, to_string(dtype), fmt::join(shape.begin(), shape.begin() + rank, ", "));
}

}  // namespace quire
