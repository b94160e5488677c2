// How long a model takes to load, beside a plain read of the same bytes: `load_bench --model FILE`. To load is to construct an
// Engine, ready to submit to: weights, tokenizer, an empty KV pool. To read is read() of every file into one small buffer. Both
// from the page cache, and with the files' pages dropped from it before (the system keeps pages that a process has mapped: the
// model should be open nowhere else), in turns, medians of some rounds. Also the CPU seconds of a load, which other load on the
// machine stretches less, and the peak of resident memory that it gains, all weights in it, of the KV pool next to nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <quire/engine.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/report.h"

namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using Clock = std::chrono::steady_clock;
using quire::bench::median, quire::bench::seconds_since, quire::bench::spread;

struct Options {
  std::string model;
  quire::bench::CommonFlags flags;
};

// Not that of src/model/mapped_file.cc: this program sees no more of the library than its users.
class Descriptor {
 public:
  explicit Descriptor(const fs::path& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("cannot open " + path.string());
  }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// A GGUF file of one part, or what lies in a folder.
std::vector<fs::path> files_of(const fs::path& model) {
  if (!fs::is_directory(model)) return {model};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(model))
    if (entry.is_regular_file()) files.push_back(entry.path());
  return files;
}

void read_all(const std::vector<fs::path>& files) {
  std::vector<char> buffer(std::size_t{1} << 20);
  for (const fs::path& path : files) {
    const Descriptor file(path);
    ssize_t count = 0;
    while ((count = read(file.fd(), buffer.data(), buffer.size())) > 0) {
    }
    if (count < 0) throw std::runtime_error("cannot read " + path.string());
  }
}

void drop_from_page_cache(const std::vector<fs::path>& files) {
  for (const fs::path& path : files) {
    const Descriptor file(path);
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Timings {
  std::vector<double> read, load, load_cpu;
};

void time_read(const std::vector<fs::path>& files, Timings& timings) {
  const Clock::time_point start = Clock::now();
  read_all(files);
  timings.read.push_back(seconds_since(start));
}

quire::Engine time_load(const Options& options, Timings& timings) {
  quire::EngineOptions engine_options;
  engine_options.num_threads = options.flags.threads;
  const double cpu = cpu_seconds();
  const Clock::time_point start = Clock::now();
  quire::Engine engine(options.model, engine_options);
  timings.load.push_back(seconds_since(start));
  timings.load_cpu.push_back(cpu_seconds() - cpu);
  return engine;
}

// What a load adds to the resident memory at its highest.
std::int64_t measure_peak(const Options& options, json::object& report) {
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  const std::int64_t before = quire::bench::own_memory("VmRSS");
  Timings timings;
  const quire::Engine engine = time_load(options, timings);
  quire::bench::add_engine(report, options.model, engine);
  return quire::bench::own_memory("VmHWM") - before;
}

json::object show(const char* name, const Timings& timings, std::string& table) {
  const double ratio = median(timings.load) / median(timings.read);
  table += fmt::format("{:<20}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.2f}\n", name, 1e3 * median(timings.read),
                       1e3 * median(timings.load), 1e3 * median(timings.load_cpu), ratio);
  return {{"read_s", spread(timings.read)},
          {"load_s", spread(timings.load)},
          {"load_cpu_s", spread(timings.load_cpu)},
          {"ratio", ratio}};
}

void run(const Options& options) {
  if (!fs::exists(options.model)) throw std::runtime_error(options.model + ": no such file or directory");
  const std::vector<fs::path> files = files_of(options.model);
  std::int64_t file_bytes = 0;
  for (const fs::path& path : files) file_bytes += static_cast<std::int64_t>(fs::file_size(path));

  json::object report = quire::bench::report_header("load");
  const std::int64_t peak_bytes = measure_peak(options, report);
  Timings cached, dropped;
  for (int i = 0; i < options.flags.repeats; ++i) {
    drop_from_page_cache(files);
    time_read(files, dropped);
    drop_from_page_cache(files);
    time_load(options, dropped);
    time_read(files, cached);
    time_load(options, cached);
  }
  std::string table = fmt::format("{:<20}{:>10}{:>10}{:>10}{:>10}\n", "milliseconds", "read", "load", "load CPU", "ratio");
  report["page_cache"] = show("page cache", cached, table);
  report["page_cache_dropped"] = show("page cache dropped", dropped, table);
  report["file_bytes"] = file_bytes;
  report["peak_bytes"] = peak_bytes;
  report["repeats"] = options.flags.repeats;
  fmt::print("{}peak of memory while loading {:.1f} MB, {:.3f} of the file's {:.1f} MB\n", table,
             1e-6 * static_cast<double>(peak_bytes), static_cast<double>(peak_bytes) / static_cast<double>(file_bytes),
             1e-6 * static_cast<double>(file_bytes));
  quire::bench::emit(report, options.flags.json);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Time to load a model, beside a plain read of its files.");
  app.add_option("--model", options.model, "GGUF file of one part, or folder with safetensors")->required();
  quire::bench::add_common_flags(app, options.flags);
  if (const auto status = quire::bench::parse_flags(app, argc, argv)) return *status;
  return quire::bench::run_guarded("load_bench", [&] { run(options); });
}
