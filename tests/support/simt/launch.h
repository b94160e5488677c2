// The host compiler's side of kernels/cuda/launch.h: runs the kernel to its end before it returns; the stream does not matter.
#pragma once

#include <tuple>

#include "kernels/cuda/launch.h"
#include "simt/block.h"

namespace quire::cuda {

template <typename... Params, typename... Args>
void launch(Stream, void (*kernel)(Params...), const LaunchShape& shape, Args... args) {
  static_assert(sizeof...(Params) == sizeof...(Args));
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  struct Call {
    void (*kernel)(Params...);
    std::tuple<Params...> params;
  } call{kernel, {static_cast<Params>(args)...}};
  const auto run_thread = [](void* arguments) {
    const auto& self = *static_cast<const Call*>(arguments);
    std::apply(self.kernel, self.params);
  };
  simt::run_grid({shape.grid, shape.block, shape.dynamic_bytes, run_thread, &call});
}

}  // namespace quire::cuda
