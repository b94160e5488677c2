// The REQUIRES of kernels/ops.h, checked where ops enter the CPU backend: types, shapes, and values that kernels index with.
// A violation is a bug of the caller: Error(kInternal) naming the op, the argument, what it is and what it should be.
#pragma once

#include "kernels/ops.h"

namespace quire {

void check_args(const EmbedArgs& args);
void check_args(const RmsNormArgs& args);
void check_args(const AddRmsNormArgs& args);
void check_args(const AddArgs& args);
void check_args(const MatmulArgs& args);
void check_args(const RopeTableArgs& args);
void check_args(const RopeArgs& args);
void check_args(const AppendKvArgs& args);
void check_args(const AttentionArgs& args);
void check_args(const GatedActivationArgs& args);
void check_args(const GatherRowsArgs& args);
void check_args(const SoftcapArgs& args);
void check_args(const SampleArgs& args);
void check_args(const CopyBlocksArgs& args);

}  // namespace quire
