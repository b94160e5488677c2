// The smallest use of quire: `generate MODEL "prompt"` continues a text. Start from here.
#include <quire/engine.h>
#include <quire/error.h>

#include <iostream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 3) {
    const bool wants_help = argc == 2 && std::string(argv[1]) == "--help";
    (wants_help ? std::cout : std::cerr) << "usage: generate MODEL PROMPT\n";
    return wants_help ? 0 : 2;
  }
  try {
    // Loads a GGUF file, or a folder with safetensors, and takes memory for the KV cache.
    quire::Engine engine(argv[1]);

    quire::Request request;
    request.prompt = engine.tokenizer().encode(argv[2]);
    request.sampling.temperature = 0.7f;
    request.sampling.top_p = 0.9f;
    request.sampling.max_tokens = 128;
    engine.submit(std::move(request));  // any number of requests share the steps that follow

    std::cout << argv[2] << std::flush;
    while (engine.has_work()) {
      for (const quire::TokenEvent& event : engine.step()) {
        std::cout << event.text << std::flush;
        if (event.finish_reason == quire::FinishReason::kError) {
          std::cerr << "\ngenerate: " << event.error << "\n";
          return 1;
        }
      }
    }
    std::cout << "\n";
  } catch (const quire::Error& error) {
    std::cerr << "generate: " << error.what() << "\n";
    return 1;
  }
}
