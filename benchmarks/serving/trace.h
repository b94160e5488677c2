// Traces of real services, as published: when requests came, how long they were, and which prefixes they shared.
//
// Known formats, told apart by their first line:
//   Mooncake  JSON lines: timestamp (ms), input_length, output_length, hash_ids (one for each 512 tokens of the input)
//   Azure     CSV: TIMESTAMP (date and time), ContextTokens, GeneratedTokens; or t_ms, input_tokens, output_tokens
//   BurstGPT  CSV: Timestamp (s), Model, Request tokens, Response tokens, ...; or t_s, model, input_tokens, output_tokens, ...
//   lengths   CSV: input_tokens, output_tokens, without times
// Lines are checked as they are read: an error names file and line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace quire::bench {

inline constexpr int kMooncakeBlockTokens = 512;

struct TraceRow {
  std::size_t line = 0;  // in the file, from 1
  double time_s = 0;     // since the first row
  int input_tokens = 0;
  int output_tokens = 0;
  std::vector<std::int64_t> block_ids = {};  // of blocks of 512 tokens; equal ids are equal prefixes. Empty: nothing shared
};

struct Trace {
  std::string format = {};  // "mooncake", "azure", "burstgpt", "lengths"
  std::vector<TraceRow> rows = {};
  std::size_t num_skipped = 0;  // rows of requests that had failed in the service (no output tokens)
};

// Throws Error: kNotFound, kInvalidFile naming file, line and field (empty file, missing or malformed fields, times that go
// backward).
Trace read_trace(const std::string& path);
// The same of a file's text; `name` stands in messages.
Trace parse_trace(const std::string& text, const std::string& name);

}  // namespace quire::bench
