#include "tests/engine/shortage.h"

#include <cstdlib>
#include <new>

namespace {

thread_local std::int64_t to_go = 0;  // allocations of this thread until one fails; 0: none does
thread_local bool stays = false;      // then all fail
thread_local bool struck = false;

bool allocation_fails() {
  if (to_go == 0) return false;
  if (to_go > 1) {
    --to_go;
    return false;
  }
  if (!stays) to_go = 0;
  struck = true;
  return true;
}

}  // namespace

void* operator new(std::size_t size) {
  void* memory = allocation_fails() ? nullptr : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocation_fails() ? nullptr : std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace quire::test {

Shortage::Shortage(std::int64_t k, bool lasts) {
  begin(k);
  stays = lasts;
}

Shortage::~Shortage() { to_go = 0; }

void Shortage::begin(std::int64_t k) {
  to_go = k;
  stays = false;
  struck = false;
}

bool Shortage::has_struck() { return struck; }

}  // namespace quire::test
