// The calls of CUDA's runtime that are templates over a kernel, for kernels/cuda/launch.h on a host compiler. On the null stream
// the kernel runs to its end before the launch returns; on any other it runs when its turn comes (simt/runtime.h), with the
// arguments of the call.
#pragma once

#include <tuple>

#include "simt/block.h"
#include "simt/cuda/cuda_runtime.h"
#include "simt/runtime.h"

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  struct Call {
    void (*kernel)(Params...);
    std::tuple<Params...> params;
    simt::Grid grid;
  };
  const void* const address = reinterpret_cast<const void*>(kernel);
  if (const cudaError_t refused = simt::check_launch(*config, address); refused != cudaSuccess) return refused;
  simt::Grid grid{config->gridDim, config->blockDim, config->dynamicSmemBytes, simt::shared_memory_limit(address)};
  grid.run_thread = [](void* arguments) {
    const auto& self = *static_cast<const Call*>(arguments);
    std::apply(self.kernel, self.params);
  };
  return simt::enqueue(config->stream, [call = Call{kernel, {static_cast<Params>(args)...}, grid}]() mutable {
    call.grid.arguments = &call;
    simt::run_grid(call.grid);
  });
}

template <typename... Params>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, void (*)(Params...)) {
  return simt::find_code();
}

template <typename... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute, int value) {
  return simt::set_dynamic_memory_limit(reinterpret_cast<const void*>(kernel), value);
}
