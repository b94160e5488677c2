#include <quire/async_engine.h>

#include <iostream>

int main() {
  quire::AsyncEngine engine(quire::Engine("model.gguf"));
  const quire::ChatTemplate chat(engine.tokenizer());
  const quire::ChatMessage dialogue[] = {{"system", "You are a helpful assistant."}, {"user", "What is the capital of France?"}};

  quire::Request request;
  request.prompt = chat.encode(dialogue);
  request.sampling.temperature = 0;
  engine.submit(request, [](const quire::TokenEvent& event) { std::cout << event.text << std::flush; });
  engine.drain_and_wait();
}
