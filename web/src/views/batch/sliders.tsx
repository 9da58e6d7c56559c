import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import type { BatchProfile, PanelPrediction as Prediction } from "../../api/batch_types";
import { bytes, percent, sideName, significant, words } from "../../base/format";
import { forBytes, forThroughput, most, step } from "../../model/choice";
import type { BatchStore } from "../../state/batch";

/** The two bars: drag either, and the other follows, and the number in the source. */
export function Sliders(props: {
  store: BatchStore;
  profile: BatchProfile;
  chosen: Prediction;
}): JSX.Element {
  const { store, profile, chosen } = props;
  const { curve } = profile;
  const limit = Math.max(
    profile.max_throughput ?? 0,
    most(curve, (one) => one.throughput),
  );
  const room = most(curve, (one) => one.bytes ?? 0);
  return (
    <div class="sliders">
      <Slider
        label="Throughput"
        share={chosen.throughput / limit}
        value={`${significant(chosen.throughput)} samples/s`}
        note={throughputNote(profile, chosen)}
        onShare={(share, more) => store.choose(forThroughput(curve, share * limit), more)}
        onStep={(places) => store.choose(step(curve, chosen, places))}
      >
        <span
          class="fill c-throughput"
          style={{ width: `${(chosen.throughput / limit) * 100}%` }}
        />
      </Slider>
      {room > 0 && (
        <Slider
          label="Peak memory"
          share={(chosen.bytes ?? 0) / room}
          value={bytes(chosen.bytes ?? 0)}
          note={memoryNote(profile)}
          onShare={(share, more) => store.choose(forBytes(curve, share * room), more)}
          onStep={(places) => store.choose(step(curve, chosen, places))}
        >
          <MemoryFill chosen={chosen} room={room} />
        </Slider>
      )}
    </div>
  );
}

/** The memory bar's kinds, side by side. */
function MemoryFill({ chosen, room }: { chosen: Prediction; room: number }): JSX.Element {
  const kinds = Object.entries(chosen.memory ?? { untracked: chosen.bytes ?? 0 });
  return (
    <>
      {kinds.map(([kind, size]) => (
        <span
          key={kind}
          class={`fill c-memory-${kind}`}
          style={{ width: `${(size / room) * 100}%` }}
          title={`${words(kind)}: ${bytes(size)}`}
        />
      ))}
    </>
  );
}

function throughputNote(profile: BatchProfile, chosen: Prediction): string {
  const [low, high] = chosen.throughput_range;
  const range = high === null ? "" : `between ${significant(low)} and ${significant(high)}`;
  const limit = profile.max_throughput;
  const share = limit
    ? `${percent(chosen.throughput / limit)} of the limit of ${significant(limit)}`
    : "";
  return [range, share].filter(Boolean).join(" · ");
}

function memoryNote({ capacity, too_large, device }: BatchProfile): string {
  if (too_large) return `out of memory at ${too_large}`;
  return capacity
    ? `of ${bytes(capacity)}, ${device.name ?? sideName(device.type ?? "the device")}`
    : "";
}

interface SliderProps {
  label: string;
  share: number;
  value: string;
  note: string;
  onShare: (share: number, more: boolean) => void;
  onStep: (places: number) => void;
  children: JSX.Element;
}

const STEPS: Record<string, number> = {
  ArrowRight: 1,
  ArrowUp: 1,
  ArrowLeft: -1,
  ArrowDown: -1,
  PageUp: 10,
  PageDown: -10,
  Home: -Infinity,
  End: Infinity,
};

function Slider(props: SliderProps): JSX.Element {
  const track = useRef<HTMLDivElement>(null);
  const shareAt = (event: PointerEvent) => {
    const box = track.current!.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
  };
  const move = (event: PointerEvent) => {
    if (track.current!.hasPointerCapture(event.pointerId)) props.onShare(shareAt(event), true);
  };
  const down = (event: PointerEvent) => {
    if (event.button !== 0) return;
    track.current!.setPointerCapture(event.pointerId);
    props.onShare(shareAt(event), true);
  };
  const up = (event: PointerEvent) => {
    if (track.current!.hasPointerCapture(event.pointerId)) props.onShare(shareAt(event), false);
  };
  const press = (event: KeyboardEvent) => {
    const places = STEPS[event.key];
    if (places === undefined) return;
    event.preventDefault();
    props.onStep(places);
  };
  return (
    <div class="slider">
      <div class="slider-head">
        <span>{props.label}</span>
        <strong class="number">{props.value}</strong>
      </div>
      <div
        ref={track}
        class="track"
        role="slider"
        tabIndex={0}
        aria-label={props.label}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.round(props.share * 100)}
        aria-valuetext={`${props.value}, ${props.note}`}
        onPointerDown={down}
        onPointerMove={move}
        onPointerUp={up}
        onPointerCancel={() => props.onStep(0)}
        onKeyDown={press}
      >
        <span class="fills">{props.children}</span>
        <span class="handle" style={{ left: `${Math.min(props.share, 1) * 100}%` }} />
      </div>
      <div class="dim slider-note">{props.note}</div>
    </div>
  );
}
