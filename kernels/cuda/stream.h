// Stream: CUDA's cudaStream_t, named without CUDA's headers, so that whoever only passes it on needs none.
#pragma once

struct CUstream_st;

namespace quire::cuda {

using Stream = CUstream_st*;

}  // namespace quire::cuda
