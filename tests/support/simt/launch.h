// The host compiler's side of kernels/cuda/launch.h. On the null stream the kernel runs to its end before the call returns; on
// any other it runs when its turn comes (simt/runtime.h), with the arguments of the call.
#pragma once

#include <tuple>

#include "kernels/cuda/launch.h"
#include "simt/block.h"
#include "simt/runtime.h"

namespace quire::cuda {

template <typename... Params, typename... Args>
void launch(Stream stream, void (*kernel)(Params...), const LaunchShape& shape, Args... args) {
  static_assert(sizeof...(Params) == sizeof...(Args));
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  struct Call {
    void (*kernel)(Params...);
    std::tuple<Params...> params;
    LaunchShape shape;
  };
  simt::enqueue(stream, [call = Call{kernel, {static_cast<Params>(args)...}, shape}]() mutable {
    const auto run_thread = [](void* arguments) {
      const auto& self = *static_cast<const Call*>(arguments);
      std::apply(self.kernel, self.params);
    };
    simt::run_grid({call.shape.grid, call.shape.block, call.shape.dynamic_bytes, run_thread, &call});
  });
}

}  // namespace quire::cuda
