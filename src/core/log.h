// The library's one logger. Messages go to standard error through spdlog's logger "quire" at level `warn`, unless the program
// registered a logger of that name before, or QUIRE_LOG_LEVEL (trace, debug, info, warn, error, off) says otherwise.
#pragma once

#include <spdlog/logger.h>

namespace quire {

spdlog::logger& logger();

}  // namespace quire
