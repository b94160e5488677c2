// What a user's first program might be: generates a few tokens from the model named on the command line. It must see the public
// headers alone.
#include <quire/async_engine.h>
#include <quire/device.h>
#include <quire/engine.h>
#include <quire/error.h>

#include <iostream>
#include <string>

#if __has_include("core/check.h") || __has_include("kernels/ops.h")
#error "quire's own folders reach the user's include path"
#endif

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: consumer MODEL\n";
    return 2;
  }
  try {
    quire::Engine engine(argv[1]);
    quire::Request request;
    request.prompt = engine.tokenizer().encode("The capital of France is");
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 4;
    engine.submit(std::move(request));
    int num_tokens = 0;
    while (engine.has_work()) {
      for (const quire::TokenEvent& event : engine.step()) {
        std::cout << event.text;
        num_tokens += event.token >= 0 ? 1 : 0;
      }
    }
    std::cout << "\n" << num_tokens << " tokens on " << quire::to_string(engine.options().device) << "\n";
    return num_tokens == 4 ? 0 : 1;
  } catch (const quire::Error& error) {
    std::cerr << quire::to_string(error.code()) << ": " << error.what() << "\n";
    return 1;
  }
}
