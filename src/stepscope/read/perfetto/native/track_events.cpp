// Writes the track events of a Perfetto trace as JSON text of trace events, for `perfetto.py`.
//
// Packets form sequences. What a packet interns, its sequence's clocks and its default track hold until
// the sequence clears its state. Tracks and the machine's clocks may be described after their use.
//
// Source: perfetto/trace/*.proto (https://github.com/google/perfetto), whose field numbers are the ones
// below.

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annotations.h"
#include "exported.h"
#include "json_writer.h"
#include "sequence_state.h"
#include "wire_format.h"

namespace {

enum Packet {
    SNAPSHOT = 6, TIME = 8, SEQUENCE = 10, EVENT = 11, INTERNED = 12, FLAGS = 13, CLEARED = 41,
    COMPRESSED = 50, CLOCK_OF_TIME = 58, DEFAULTS = 59, DESCRIPTOR = 60
};
enum Type { BEGIN = 1, END, INSTANT, COUNTER };
enum Count { DAMAGED, UNREAD_PACKETS, UNREAD_EVENTS, COUNTS };

struct Track {
    Number parent = 0, process = 0, thread = 0;
    bool has_process = false, has_thread = false, is_incremental = false;
    double unit = 1;  // of its counter
    std::string name;  // as JSON
    std::string place;  // the process and thread as JSON, once an event is on it
};

struct Event {
    Number type = 0, track = 0;
    Text name, category;  // as JSON, or not yet
    bool has_quoted_name = false, has_quoted_category = false;
    double value = 0;
    Text legacy;
};

struct Legacy {
    char phase = 0;
    Number us = 0;  // of duration
    std::uint64_t identity = 0;
    bool has_identity = false;
};

struct FlowEnd {
    Number ns;
    Number track;
    std::uint64_t flow;
};

class TrackEvents {
public:
    TrackEvents(Text trace, JsonWriter& json, Number* counts) : trace_(trace), json_(json), counts_(counts) {}

    void write() {
        Number known_damage = 0;
        Field packet;
        for (Fields packets(trace_, known_damage); packets.next(packet);)
            if (packet.is(1, BYTES)) read_described(packet.bytes, known_damage);
        json_ << "{\"traceEvents\":[";
        for (Fields packets(trace_, counts_[DAMAGED]); packets.next(packet);)
            if (packet.is(1, BYTES)) read_packet(packet.bytes);
        write_labels();
        write_flows();
        json_ << "]}";
        json_.flush();
    }

private:
    // -- what holds for the whole trace

    void read_described(Text packet, Number& damage) {
        Field field;
        for (Fields fields(packet, damage); fields.next(field);) {
            if (field.is(DESCRIPTOR, BYTES)) read_track(field.bytes, damage);
            if (field.is(SNAPSHOT, BYTES)) read_clocks(field.bytes, nullptr, damage);
        }
    }

    void read_track(Text descriptor, Number& damage) {
        Field field, process, thread, counter;
        Number number = 0, parent = 0;
        Text name, fixed_name;
        for (Fields fields(descriptor, damage); fields.next(field);) {
            if (field.is(1, VARINT)) number = Number(field.value);
            if (field.is(5, VARINT)) parent = Number(field.value);
            if (field.is(2, BYTES)) name = field.bytes;
            if (field.is(10, BYTES)) fixed_name = field.bytes;
            if (field.is(3, BYTES)) process = field;
            if (field.is(4, BYTES)) thread = field;
            if (field.is(8, BYTES)) counter = field;
        }
        Track& track = tracks_[number];
        track.parent = parent;
        if (name.empty()) name = fixed_name;
        if (counter.number) read_counter(counter.bytes, track, damage);
        if (thread.number) read_thread(thread.bytes, track, name, damage);
        if (process.number) read_process(process.bytes, track, name, damage);
        if (!name.empty()) track.name = quoted(name);
    }

    void read_counter(Text descriptor, Track& track, Number& damage) {
        Field field;
        for (Fields fields(descriptor, damage); fields.next(field);) {
            if (field.is(4, VARINT) && field.value) track.unit = double(Number(field.value));
            if (field.is(5, VARINT)) track.is_incremental = field.value;
        }
    }

    void read_thread(Text descriptor, Track& track, Text& name, Number& damage) {
        track.has_process = track.has_thread = true;
        track.process = track.thread = 0;
        Field field;
        for (Fields fields(descriptor, damage); fields.next(field);) {
            if (field.is(1, VARINT)) track.process = std::int32_t(field.value);
            if (field.is(2, VARINT)) track.thread = Number(field.value);
            if (field.is(5, BYTES)) name = field.bytes;
        }
    }

    void read_process(Text descriptor, Track& track, Text track_name, Number& damage) {
        track.has_process = true;
        track.process = 0;
        Field field;
        for (Fields fields(descriptor, damage); fields.next(field);) {
            if (field.is(1, VARINT)) track.process = std::int32_t(field.value);
            if (field.is(6, BYTES)) track_name = field.bytes;
        }
        processes_[track.process] = quoted(track_name);
    }

    // Of the machine's clocks the first readings hold for the whole trace.
    void read_clocks(Text snapshot, State* state, Number& damage) {
        std::vector<std::pair<Number, Clock>> clocks;
        Field field, inner;
        for (Fields fields(snapshot, damage); fields.next(field);) {
            if (!field.is(1, BYTES)) continue;
            auto& [number, clock] = clocks.emplace_back();
            for (Fields parts(field.bytes, damage); parts.next(inner);) {
                if (inner.is(1, VARINT)) number = Number(inner.value);
                if (inner.is(2, VARINT)) clock.reading = Number(inner.value);
                if (inner.is(3, VARINT)) clock.is_incremental = inner.value;
                if (inner.is(4, VARINT) && inner.value) clock.unit_ns = Number(inner.value);
            }
        }
        const auto find = [&](auto test) { return std::find_if(clocks.begin(), clocks.end(), test); };
        auto boot = find([](const auto& entry) { return entry.first == BOOT; });
        if (boot == clocks.end()) boot = find([](const auto& entry) { return entry.first < FIRST_CUSTOM; });
        const Number start_ns = boot == clocks.end() ? 0 : boot->second.reading;
        for (auto& [number, clock] : clocks) {
            clock.start_ns = start_ns;
            if (state && number >= FIRST_CUSTOM) state->clocks[number] = clock;
            if (!state && number < FIRST_CUSTOM) clocks_.try_emplace(number, clock);
        }
    }

    // -- packets

    void read_packet(Text packet) {
        Number time = 0, clock = 0, sequence = 0;
        bool clears = false;
        Field field;
        parts_.clear();
        for (Fields fields(packet, counts_[DAMAGED]); fields.next(field);) {
            if (field.is(TIME, VARINT)) time = Number(field.value);
            if (field.is(CLOCK_OF_TIME, VARINT)) clock = Number(field.value);
            if (field.is(SEQUENCE, VARINT)) sequence = Number(field.value);
            if (field.is(FLAGS, VARINT)) clears |= field.value & 1;
            if (field.is(CLEARED, VARINT)) clears |= field.value != 0;
            if (field.kind == BYTES) parts_.push_back(field);
        }
        State& state = states_[sequence];
        if (clears) state = State();
        for (const Field& part : parts_) read_state(part, state);
        // Also of a packet without events: the next one's time may be since this one's.
        const Number time_ns = ns(state, clock, time);
        for (const Field& part : parts_)
            if (part.number == EVENT) read_event(part.bytes, time_ns, state);
    }

    void read_state(const Field& part, State& state) {
        switch (part.number) {
            case SNAPSHOT: return read_clocks(part.bytes, &state, counts_[DAMAGED]);
            case INTERNED: return read_interned(part.bytes, state);
            case DEFAULTS: return read_defaults(part.bytes, state);
            case EVENT: case COMPRESSED: case DESCRIPTOR:
            case 33: case 35: case 36: case 45: case 76: case 89:  // configuration, statistics
                return;
            default: ++counts_[UNREAD_PACKETS];
        }
    }

    void read_interned(Text interned, State& state) {
        Field field, inner;
        for (Fields fields(interned, counts_[DAMAGED]); fields.next(field);) {
            const bool is_kept = field.number <= ARGUMENT_NAMES || field.number == TEXTS;
            if (!is_kept || field.kind != BYTES) continue;
            std::uint64_t number = 0;
            Text text;
            for (Fields parts(field.bytes, counts_[DAMAGED]); parts.next(inner);) {
                if (inner.is(1, VARINT)) number = inner.value;
                if (inner.is(2, BYTES)) text = inner.bytes;
            }
            state.texts[field.number][number] = quoted(text);
        }
    }

    void read_defaults(Text defaults, State& state) {
        Field field, inner;
        for (Fields fields(defaults, counts_[DAMAGED]); fields.next(field);) {
            if (field.is(CLOCK_OF_TIME, VARINT)) state.clock = Number(field.value);
            if (!field.is(EVENT, BYTES)) continue;
            for (Fields parts(field.bytes, counts_[DAMAGED]); parts.next(inner);)
                if (inner.is(11, VARINT)) state.track = Number(inner.value);
        }
    }

    // The time of a packet on the boot clock.
    Number ns(State& state, Number number, Number time) {
        if (!number) number = state.clock ? state.clock : BOOT;
        auto& clocks = number < FIRST_CUSTOM ? clocks_ : state.clocks;
        const auto clock = clocks.find(number);
        return clock == clocks.end() ? time : clock->second.ns(time);
    }

    // -- events

    void read_event(Text text, Number ns, State& state) {
        Event event;
        event.track = state.track;
        Field field;
        const std::size_t first_flow = flows_.size();
        annotations_.clear();
        for (Fields fields(text, counts_[DAMAGED]); fields.next(field);) {
            if (field.kind == VARINT) read_number(field, event, state);
            if (field.is(44, FIXED64)) event.value = real_of(field.value);
            if (field.kind == FIXED64 && (field.number == 47 || field.number == 48))
                flows_.push_back({ns, 0, field.value});
            if (field.kind == VARINT && (field.number == 36 || field.number == 42))
                flows_.push_back({ns, 0, field.value});
            if (field.kind != BYTES) continue;
            if (field.number == 23) event.name = field.bytes, event.has_quoted_name = false;
            if (field.number == 22) event.category = field.bytes, event.has_quoted_category = false;
            if (field.number == 4) annotations_.push_back(field.bytes);
            if (field.number == 6) event.legacy = field.bytes;
        }
        for (std::size_t at = first_flow; at < flows_.size(); ++at) flows_[at].track = event.track;
        write_event(event, ns, state);
    }

    void read_number(const Field& field, Event& event, const State& state) {
        switch (field.number) {
            case 3:
                event.category = state.text(CATEGORIES, field.value);
                event.has_quoted_category = true;
                break;
            case 9: event.type = Number(field.value); break;
            case 10:
                event.name = state.text(NAMES, field.value);
                event.has_quoted_name = true;
                break;
            case 11: event.track = Number(field.value); break;
            case 30: event.value = double(Number(field.value)); break;
            default: break;
        }
    }

    void write_event(const Event& event, Number ns, State& state) {
        if (event.type == COUNTER) return write_counter(event, ns, state);
        const Legacy legacy = legacy_of(event);
        if (!legacy.phase) {
            ++counts_[UNREAD_EVENTS];
            return;
        }
        begin({&legacy.phase, 1});
        if (!event.category.empty()) (json_ << ",\"cat\":").text(event.category, event.has_quoted_category);
        if (!event.name.empty()) (json_ << ",\"name\":").text(event.name, event.has_quoted_name);
        write_place(event.track, ns);
        if (legacy.phase == 'X') (json_ << ",\"dur\":").number(legacy.us);
        if (legacy.has_identity) (json_ << ",\"id\":\"").number(legacy.identity) << "\"";
        for (std::size_t at = 0; at < annotations_.size(); ++at) {
            json_ << (at ? "," : ",\"args\":{");
            AnnotationWriter(json_, state, counts_[DAMAGED]).write_entry(annotations_[at]);
        }
        json_ << (annotations_.empty() ? "}" : "}}");
    }

    // The phase of an event as in JSON, and what only JSON's own events have.
    Legacy legacy_of(const Event& event) {
        Legacy legacy;
        if (event.type >= BEGIN && event.type <= INSTANT) legacy.phase = "BEi"[event.type - 1];
        if (event.type != 0) return legacy;
        Field field;
        for (Fields fields(event.legacy, counts_[DAMAGED]); fields.next(field);) {
            if (field.kind != VARINT) continue;
            const bool is_identity = field.number == 6 || field.number == 10 || field.number == 11;
            if (field.number == 2 && field.value < 128 && std::strchr("XbenSTF", int(field.value)))
                legacy.phase = char(field.value);
            if (field.number == 3) legacy.us = Number(field.value);
            if (is_identity) legacy.identity = field.value, legacy.has_identity = true;
        }
        return legacy;
    }

    void write_counter(const Event& event, Number ns, State& state) {
        const Track& track = tracks_[event.track];
        double value = event.value * track.unit;
        if (track.is_incremental) value = state.counters[event.track] += value;
        begin("C");
        if (!event.name.empty()) (json_ << ",\"name\":").text(event.name, event.has_quoted_name);
        else if (!track.name.empty()) (json_ << ",\"name\":").text(track.name, true);
        write_place(event.track, ns);
        (json_ << ",\"args\":{\"value\":").real(value) << "}}";
    }

    void begin(Text phase) {
        json_ << (is_first_ ? "{\"ph\":\"" : ",\n{\"ph\":\"") << phase << "\"";
        is_first_ = false;
    }

    void write_place(Number track, Number ns) {
        (json_ << place(track) << ",\"ts\":").microseconds(ns);
    }

    // The process and thread of a track; a track without a thread is a thread of its own.
    Text place(Number number) {
        Track& track = tracks_[number];
        if (track.place.empty()) {
            const std::string thread = track.has_thread
                ? std::to_string(track.thread)
                : "\"track " + std::to_string(std::uint64_t(number)) + "\"";
            track.place = ",\"pid\":" + std::to_string(process(number)) + ",\"tid\":" + thread;
        }
        return track.place;
    }

    Number process(Number number) const {
        for (int level = 0; level < MOST_LEVELS; ++level) {
            const auto track = tracks_.find(number);
            if (track == tracks_.end()) break;
            if (track->second.has_process) return track->second.process;
            number = track->second.parent;
        }
        return 0;
    }

    // -- what is written last

    void write_labels() {
        for (const auto& [process, name] : processes_) {
            begin("M");
            (json_ << ",\"name\":\"process_name\",\"tid\":0,\"pid\":").number(process);
            json_ << ",\"args\":{\"name\":" << name << "}}";
        }
        for (const auto& [number, track] : tracks_) {
            if (track.place.empty() || track.name.empty()) continue;
            begin("M");
            json_ << ",\"name\":\"thread_name\"" << track.place;
            json_ << ",\"args\":{\"name\":" << track.name << "}}";
        }
    }

    void write_flows() {
        std::stable_sort(flows_.begin(), flows_.end(),
                         [](const FlowEnd& a, const FlowEnd& b) { return a.ns < b.ns; });
        std::map<std::uint64_t, bool> is_begun;
        for (const FlowEnd& end : flows_) {
            bool& begun = is_begun[end.flow];
            begin(begun ? "t" : "s");
            (json_ << ",\"cat\":\"flow\",\"name\":\"flow\",\"id\":\"").number(end.flow) << "\"";
            write_place(end.track, end.ns);
            json_ << "}";
            begun = true;
        }
    }

    const Text trace_;
    JsonWriter& json_;
    Number* counts_;
    bool is_first_ = true;
    std::map<Number, Track> tracks_;
    std::map<Number, std::string> processes_;  // names as JSON
    std::map<Number, Clock> clocks_;
    std::map<Number, State> states_;  // by sequence
    std::vector<Field> parts_;  // of a packet
    std::vector<Text> annotations_;  // of an event
    std::vector<FlowEnd> flows_;
};

}  // namespace

// Writes the events of a trace of `size` bytes to an open file, at most `most` bytes of text.
//
// counts: room for COUNTS numbers.
// Returns 0, -1 where the text takes more room, or the number of the error in writing.
EXPORTED int stepscope_write_track_events(const char* trace, Number size, Number file, Number most,
                                          Number* counts) {
    std::memset(counts, 0, COUNTS * sizeof *counts);
    try {
        JsonWriter json(int(file), most);
        TrackEvents({trace, std::size_t(size)}, json, counts).write();
        return 0;
    } catch (const Unwritten&) {
        return errno;
    } catch (...) {
        return -1;
    }
}

// The packets that are packets in compressed form: where each starts and ends, and where the compressed
// bytes do; the first `rows` of them.
//
// Returns how many there are.
EXPORTED int stepscope_compressed_packets(const char* trace, Number size, Number rows, Number* places) {
    Number damage = 0, count = 0;
    Field packet, field;
    for (Fields packets({trace, std::size_t(size)}, damage); packets.next(packet);) {
        if (!packet.is(1, BYTES)) continue;
        for (Fields fields(packet.bytes, damage); fields.next(field);) {
            if (!field.is(COMPRESSED, BYTES)) continue;
            if (count < rows) {
                for (const char* end : {packet.begin, packet.bytes.end(), field.bytes.begin(), field.bytes.end()})
                    *places++ = end - trace;
            }
            ++count;
        }
    }
    return int(count);
}
