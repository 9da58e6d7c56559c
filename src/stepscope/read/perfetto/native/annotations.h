#pragma once

// Arguments of a track event (`DebugAnnotation`), written as entries of a JSON object.

#include <cstdint>
#include <cstring>

#include "json_writer.h"
#include "sequence_state.h"
#include "wire_format.h"

namespace {

constexpr int MOST_LEVELS = 150;  // of arguments in arguments, and of tracks in tracks

struct Annotation {
    Text message;
    Text name = "\"\"";  // as JSON, or not yet
    bool is_quoted = true, has_entries = false, has_items = false;
    Field value;
};

inline double real_of(std::uint64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

class AnnotationWriter {
public:
    AnnotationWriter(JsonWriter& json, const State& state, Number& damage)
        : json_(json), state_(state), damage_(damage) {}

    // A name and its value; `level` is how many values are around it.
    void write_entry(Text message, int level = 0) {
        const Annotation annotation = annotation_of(message);
        json_.text(annotation.name, annotation.is_quoted) << ":";
        write_value(annotation, level);
    }

private:
    Annotation annotation_of(Text text) {
        Annotation annotation;
        annotation.message = text;
        Field field;
        for (Fields fields(text, damage_); fields.next(field);) {
            switch (field.number) {
                case 1:
                case 10:
                    annotation.is_quoted = field.kind == VARINT;
                    annotation.name = annotation.is_quoted ? state_.text(ARGUMENT_NAMES, field.value)
                                                           : field.bytes;
                    break;
                case 11: annotation.has_entries |= field.kind == BYTES; break;
                case 12: annotation.has_items |= field.kind == BYTES; break;
                case 2: case 3: case 4: case 5: case 6: case 7: case 9: case 17:
                    annotation.value = field;
                    break;
                default: break;
            }
        }
        return annotation;
    }

    void write_value(const Annotation& annotation, int level) {
        const Field& value = annotation.value;
        const bool has_inner = annotation.has_items || annotation.has_entries;
        if (level < MOST_LEVELS && has_inner) {
            write_inner(annotation, level + 1);
        } else if (value.is(2, VARINT)) json_ << (value.value ? "true" : "false");
        else if (value.is(3, VARINT) || value.is(7, VARINT)) json_.number(value.value);
        else if (value.is(4, VARINT)) json_.number(Number(value.value));
        else if (value.is(5, FIXED64)) json_.real(real_of(value.value));
        else if (value.is(6, BYTES) || value.is(9, BYTES)) json_.quoted(value.bytes);
        else if (value.is(17, VARINT)) json_ << state_.text(TEXTS, value.value);
        else json_ << "null";
    }

    // The values of an array, else the entries of an object.
    void write_inner(const Annotation& annotation, int level) {
        const bool is_array = annotation.has_items;
        Number known_damage = 0;
        Field field;
        json_ << (is_array ? "[" : "{");
        bool is_first = true;
        for (Fields fields(annotation.message, known_damage); fields.next(field);) {
            if (!field.is(is_array ? 12 : 11, BYTES)) continue;
            if (!is_first) json_ << ",";
            is_first = false;
            if (is_array) write_value(annotation_of(field.bytes), level);
            else write_entry(field.bytes, level);
        }
        json_ << (is_array ? "]" : "}");
    }

    JsonWriter& json_;
    const State& state_;
    Number& damage_;
};

}  // namespace
