// How many devices the played CUDA runtime has: one, but for the tests of several. They share memory and streams.
#pragma once

namespace simt {

void set_num_devices(int count);

}  // namespace simt
