// The start-up check of a kernel variant against another one, bit for bit, on a small case of every op.
#pragma once

#include <string_view>

#include "kernels/cpu/kernels.h"

namespace quire::cpu {

// The name of the first op whose results differ between the tables, or "" if none does. Takes about a millisecond.
std::string_view first_difference(const KernelTable& a, const KernelTable& b);

// `candidate` if it agrees with `reference` in every op; else logs a warning that names the op and returns `reference`.
const KernelTable& checked_kernels(const KernelTable& candidate, const KernelTable& reference);

}  // namespace quire::cpu
