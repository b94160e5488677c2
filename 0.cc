#include <quire/engine.h>

#include <iostream>

int main() {
  quire::Engine engine("model.gguf");

  quire::Request request;
  request.prompt = engine.tokenizer().encode("The capital of France is");
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 32;
  engine.submit(request);  // any number of requests share the steps

  while (engine.has_work()) {
    for (const quire::TokenEvent& event : engine.step()) std::cout << event.text << std::flush;
  }
}
