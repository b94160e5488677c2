// What a user asks of an engine and what comes back: Request, SamplingParams, TokenEvent.
// Plain aggregates, copied freely, with no tie to an engine. `Engine::submit` checks every field and names the one that is
// wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quire {

using TokenId = std::int32_t;
using RequestId = std::uint64_t;  // given by the engine, unique for its lifetime, never 0

// Fills `mask` (bit i of word i / 32 set: token i may be sampled next) from the tokens generated so far. Must depend on its
// arguments alone: after a preemption, and for each of `n` choices, it is asked again. It arrives with every bit set. A mask
// without any allowed token ends the choice with FinishReason::kError, as does an exception. Called on the thread of step(),
// within it: of its Engine it may call const members; step(), submit() and cancel() throw Error(kInvalidArgument) there, which
// ends the choice unless caught. Of an AsyncEngine it may call what an EventCallback may.
using TokenMask = std::function<void(std::span<const TokenId> generated, std::span<std::uint32_t> mask)>;

// Order of application (the usual one of the field): mask and logit bias, penalties, temperature, then top-k, typical-p, top-p
// and min-p, each on what the one before left, renormalised; ties go to the lower id. Reported logprobs are those of the
// model's own distribution: after no parameter at all, natural logarithm.
struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy. [0, 100]
  int top_k = 0;                    // keep the k likeliest; 0: off
  float top_p = 1.0f;               // keep the smallest set with this probability; (0, 1]
  float min_p = 0.0f;               // keep tokens with at least min_p times the top probability; [0, 1]
  float typical_p = 1.0f;           // locally typical sampling (Meister et al. 2022, arXiv:2202.00666); (0, 1]
  float repetition_penalty = 1.0f;  // divides positive and multiplies negative logits of tokens in prompt or output
                                    // (Keskar et al. 2019, arXiv:1909.05858, eq. 4); (0, 10]
  float presence_penalty = 0.0f;    // subtracted once from tokens in the output; [-2, 2]
  float frequency_penalty = 0.0f;   // subtracted per occurrence in the output; [-2, 2]
  std::vector<std::pair<TokenId, float>> logit_bias = {};  // added to logits; at most 1,024 entries, finite or -infinity
  TokenMask token_mask = {};                               // for grammars; empty: every token allowed
  std::optional<std::uint64_t> seed = {};  // empty: drawn by the engine. Same seed, same tokens, whatever else is running
  int n = 1;                               // choices returned; choice i draws from stream i of the seed. [1, 128]
  int best_of = 0;                   // choices generated, of which the n with the highest mean logprob are returned, after all
                                     // have ended; 0: n. [n, 128]
  std::optional<int> logprobs = {};  // of each generated token, with that many alternatives; [0, 20]
  std::optional<int> prompt_logprobs = {};   // of each prompt token but the first, with that many alternatives; [0, 20].
                                             // The prompt is then computed whole, not taken from the prefix cache
  int max_tokens = 256;                      // at most this many generated tokens; clamped to what the context holds. At least 1
  int min_tokens = 0;                        // end tokens and stop tokens cannot be sampled before. [0, max_tokens]
  std::vector<TokenId> stop_token_ids = {};  // end the choice, and are not part of its text; honoured with ignore_eos too; at
                                             // most 1,024
  std::vector<std::string> stop = {};        // end the choice before the text; at most 64, of 1 to 1,024 bytes of UTF-8
  bool ignore_eos = false;                   // go on after the model's own end tokens
};

struct Request {
  std::vector<TokenId> prompt = {};  // at least one token; `Tokenizer::encode` and `ChatTemplate::encode` make them
  SamplingParams sampling = {};
  int priority = 0;  // lower runs earlier; equal: by arrival. While lower keeps coming a prompt may wait for ever, also in its
                     // middle; streams that are answered go on
  std::string cache_salt = {};                  // requests share cached prefixes only with the same salt
  std::optional<std::int64_t> timeout_us = {};  // from submit; then the request ends with FinishReason::kDeadline
};

enum class FinishReason {
  kNone,       // goes on
  kStop,       // an end token, a stop token or a stop string
  kLength,     // max_tokens, or the context is full
  kCancelled,  // Engine::cancel
  kDeadline,   // timeout_us is over
  kError,      // this choice failed; TokenEvent::error says why
};

// "none", "stop", "length", ...
const char* to_string(FinishReason reason);

struct TokenLogprob {
  TokenId token = -1;
  float logprob = 0.0f;  // natural logarithm
};

struct PositionLogprobs {
  TokenLogprob chosen = {};            // the token that stands there
  std::vector<TokenLogprob> top = {};  // the likeliest, best first, ties by lower id; as many as asked for
};

struct Usage {
  int prompt_tokens = 0;
  int completion_tokens = 0;  // of this choice
  int cached_tokens = 0;      // prompt tokens whose KV came from the prefix cache when the request was first admitted
};

// One token of one choice, or the end of a choice. The last event of a choice has `finish_reason` set and may carry no token.
// The concatenation of `text` over a choice's events is its answer.
struct TokenEvent {
  RequestId request_id = 0;
  int index = 0;          // choice, 0 to n - 1
  TokenId token = -1;     // -1: no token in this event
  std::string text = {};  // complete UTF-8; may lag behind the tokens while it could become part of a character or stop string
  std::optional<PositionLogprobs> logprobs = {};       // if SamplingParams::logprobs
  std::vector<PositionLogprobs> prompt_logprobs = {};  // in the first event of choice 0, if asked: entry i is of prompt[i + 1];
                                                       // fewer than the prompt has if the choice ended while they were computed
  FinishReason finish_reason = FinishReason::kNone;
  std::string error = {};  // with FinishReason::kError
  Usage usage = {};        // up to and with this event
};

}  // namespace quire
