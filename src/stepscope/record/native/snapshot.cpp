// The tree as JSON (docs/reference/contexts_format.md).
#include <algorithm>
#include <cmath>

#include "collector.h"

namespace stepscope {

void add_figures(Thread& thread, std::unordered_map<uint64_t, Stat>& figures);

namespace {

struct MetricForm {
  const char *name, *unit, *nesting, *meaning;
};
const MetricForm kForms[] = {
    {"cpu_ns", "ns", "inclusive", "time on the CPU thread"},
    {"device_ns", "ns", "exclusive", "execution on the device"},
    {"allocated_bytes", "bytes", "exclusive", "memory allocated"},
    {"freed_bytes", "bytes", "exclusive", "memory released"},
    {"sampled_cpu_ns", "ns", "exclusive", "CPU time between samples"},
    {"sampled_real_ns", "ns", "exclusive", "elapsed time between samples"},
    {"cycles", "1", "exclusive", "processor cycles"},
    {"instructions", "1", "exclusive", "instructions retired"},
    {"cache_misses", "1", "exclusive", "misses of the last-level cache"},
    {"page_faults", "1", "exclusive", "page faults"},
    {"stalls", "samples", "exclusive", "samples of an instruction, by the state of its warp"},
    {"latency_stalls", "samples", "exclusive", "stall samples in whose cycle nothing was issued"},
    {"thread_cpu_ns", "ns", "exclusive", "CPU time of the calling thread, without waiting"},
    {"blocks", "1", "exclusive", "thread blocks of a launch"},
    {"threads", "1", "exclusive", "threads of a launch"},
    {"registers", "1", "exclusive", "registers of a thread of a launch"},
    {"shared_bytes", "bytes", "exclusive", "shared memory of a block of a launch"},
};
const char* kKinds[] = {"root",    "thread", "python", "module", "operator", "annotation",
                        "runtime", "native", "kernel", "instruction"};

class Json {
 public:
  std::string text;
  void string(const std::string& value) {
    text += '"';
    for (char c : value) character(c);
    text += '"';
  }
  void number(double value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.17g", value);
    text += digits;
  }
  template <class Range, class Function>
  void list(const char* name, const Range& range, Function write) {
    field(name);
    text += '[';
    bool first = true;
    for (const auto& item : range) {
      if (!first) text += ',';
      first = false;
      write(item);
    }
    text += ']';
  }
  void field(const char* name) {
    if (text.back() != '{') text += ',';
    text += '"';
    text += name;
    text += "\":";
  }
  template <class Integer>
  void integer(const char* name, Integer value) {
    field(name);
    text += std::to_string(value);
  }

 private:
  void character(char c) {
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      snprintf(escaped, sizeof escaped, "\\u%04x", c);
      text += escaped;
    } else {
      text += c;
    }
  }
};

struct Figures {
  std::unordered_map<uint64_t, Stat> of;
  Totals totals;
};

// Running operators count up to now; otherwise they would be shorter than their nested calls.
void add_running(Thread& thread, Figures& figures) {
  struct Running {
    NodeId node;
    uint64_t start, own, is_outermost;
  } running[256];
  int depth = 0;
  uint64_t now = 0, own = 0;
  for (int tries = 0; tries < 100; tries++) {
    uint32_t activity = thread.activity.load(std::memory_order_acquire);
    depth = 0;
    now = ticks();
    own = thread.totals.own;
    for (Entry* entry = thread.top; entry && depth < 256; entry = entry->below)
      if (entry->slot && !entry->is_pending)
        running[depth++] = {entry->slot->node, entry->start, entry->own, !entry->below};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!(activity & 1) && thread.activity.load(std::memory_order_relaxed) == activity) break;
    depth = 0;
  }
  for (int i = 0; i < depth; i++) {
    if (now < running[i].start + (own - running[i].own)) continue;
    uint64_t time = now - running[i].start - (own - running[i].own);
    figures.of[running[i].node].add(time);
    figures.totals.operators++;
    if (running[i].is_outermost) figures.totals.time += time;
  }
}

Figures gather(Collector& collector) {
  Figures figures;
  std::lock_guard<std::mutex> lock(collector.mutex);
  for (Thread* thread : collector.threads) {
    add_figures(*thread, figures.of);
    figures.totals.add(thread->totals);
    add_running(*thread, figures);
  }
  for (auto& [place, stat] : collector.ended) figures.of[place].add(stat);
  if (collector.sampler) collector.sampler->add_figures(figures.of);
  figures.totals.add(collector.ended_totals);
  return figures;
}

void write_nodes(Json& json, const std::vector<Node>& nodes, const std::vector<Key>& keys) {
  json.field("nodes");
  json.text += '{';
  auto column = [&](const char* name, auto value) {
    json.list(name, nodes, [&](const Node& n) { json.text += std::to_string(value(n)); });
  };
  auto key = [&](const Node& n) -> const Key& { return keys[n.key & ~kBackward]; };
  bool is_root = true;
  column("parent", [&](const Node& n) -> int64_t {
    if (!is_root) return n.parent;
    is_root = false;
    return -1;
  });
  column("kind", [&](const Node& n) { return int(key(n).kind); });
  column("relation", [&](const Node& n) { return n.key & kBackward ? 1 : 0; });
  column("name", [&](const Node& n) { return key(n).name; });
  column("file", [&](const Node& n) { return key(n).file; });
  column("line", [&](const Node& n) { return key(n).line; });
  column("class", [&](const Node& n) { return key(n).type; });
  json.text += '}';
}

using Row = std::pair<NodeId, Stat>;

void write_metric(Json& json, Metric metric, const std::vector<Row>& rows, double scale) {
  const MetricForm& form = kForms[uint32_t(metric)];
  json.field(form.name);
  json.text += '{';
  for (auto [name, value] : {std::pair("unit", form.unit), {"nesting", form.nesting},
                             {"meaning", form.meaning}}) {
    json.field(name);
    json.string(value);
  }
  auto column = [&](const char* name, auto value) {
    json.list(name, rows, [&](const Row& row) { json.text += std::to_string(value(row)); });
  };
  auto scaled = [&](uint64_t value) { return uint64_t(std::llround(double(value) * scale)); };
  column("node", [&](const Row& row) { return row.first; });
  column("count", [&](const Row& row) { return row.second.count; });
  column("sum", [&](const Row& row) { return scaled(row.second.sum); });
  column("min", [&](const Row& row) { return scaled(row.second.min); });
  column("max", [&](const Row& row) { return scaled(row.second.max); });
  json.list("squares", rows,
            [&](const Row& row) { json.number(row.second.squares * scale * scale); });
  json.text += '}';
}

void write_metrics(Json& json, const Figures& figures, size_t nodes, double scale) {
  std::vector<std::vector<Row>> metrics(size_t(Metric::count));
  for (auto& [place, stat] : figures.of)
    if (stat.count && uint32_t(place) < nodes)
      metrics[size_t(place >> 32)].emplace_back(NodeId(place), stat);
  json.field("metrics");
  json.text += '{';
  for (size_t metric = 0; metric < metrics.size(); metric++) {
    auto& rows = metrics[metric];
    if (rows.empty()) continue;
    std::sort(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.first < b.first; });
    write_metric(json, Metric(metric), rows, Metric(metric) == Metric::time ? scale : 1);
  }
  json.text += '}';
}

void write_totals(Json& json, Collector& collector, const Totals& totals, double scale) {
  json.field("totals");
  json.text += '{';
  json.integer("cpu_ns", std::llround(double(totals.time) * scale));
  json.integer("collector_ns", std::llround(double(totals.own) * scale));
  json.integer("operators", totals.operators);
  json.integer("backward", totals.backward);
  json.integer("backward_linked", totals.linked);
  json.text += '}';
  std::lock_guard<std::mutex> lock(collector.mutex);
  json.field("dropped");
  json.text += '{';
  json.integer("contexts", totals.dropped);
  json.integer("backward_links", totals.missed);
  json.integer("samples", collector.dropped_samples + (collector.sampler ? collector.sampler->torn() : 0));
  json.integer("device_records", collector.dropped_device);
  json.text += '}';
  json.list("notes", collector.notes, [&](const std::string& note) { json.string(note); });
}

void write_sources(Json& json, uint32_t sources) {
  std::vector<std::string> names;
  const char* all[] = {"python", "module", "operator", "native", "kernel"};
  for (int i = 0; i < 5; i++)
    if (sources & (1u << i)) names.push_back(all[i]);
  json.list("sources", names, [&](const std::string& name) { json.string(name); });
}

}  // namespace

std::string snapshot(Collector& collector, bool complete) {
  Figures figures = gather(collector);
  double scale = nanoseconds_per_tick(collector);
  std::vector<Node> nodes = collector.tree.copy();  // after the metrics, so that each has its node
  std::vector<Key> keys;
  std::vector<std::string> strings;
  collector.keys.copy(keys, strings);
  Json json;
  json.text = "{\"format\":\"stepscope contexts\",\"version\":1,\"collector\":\"native\",\"lacks\":[]";
  json.integer("started_unix_ns", collector.started_unix_ns);
  json.integer("elapsed_ns", nanoseconds() - collector.started_ns);
  json.text += complete ? ",\"complete\":true" : ",\"complete\":false";
  write_sources(json, collector.options.sources);
  json.list("strings", strings, [&](const std::string& text) { json.string(text); });
  json.list("kinds", kKinds, [&](const char* kind) { json.string(kind); });
  write_nodes(json, nodes, keys);
  write_metrics(json, figures, nodes.size(), scale);
  write_totals(json, collector, figures.totals, scale);
  json.text += '}';
  return std::move(json.text);
}

}  // namespace stepscope
