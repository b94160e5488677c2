// The accesses that kernels name: load_global and its like. Each is checked where it is made, with its place in the source.
#include <string>

#include "simt/block.h"
#include "simt/device_memory.h"
#include "simt/instructions.h"

namespace simt {

void request(Space space, Access access, const void* address, std::size_t bytes, Site site) {
  Block& b = block();
  const auto refuse = [&](const std::string& why) {
    b.fail("{}_{} at {}: {}", access == Access::kRead ? "load" : "store", space == Space::kGlobal ? "global" : "shared",
           to_string(site), why);
  };
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
    refuse(fmt::format("the address is not a multiple of {}, the size of the type", bytes));
  if (space == Space::kShared && !b.shared().in_use(address, bytes)) refuse("outside of the block's shared memory");
  if (space == Space::kGlobal && !in_device_memory(address, bytes)) refuse(describe_device_address(address));
}

}  // namespace simt
