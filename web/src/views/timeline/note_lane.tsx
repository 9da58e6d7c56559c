import type { JSX } from "preact";
import { notesIn } from "../../model/notes";
import type { AxisState } from "../../state/axis";
import { goToNote } from "../../state/notes";
import type { Store } from "../../state/store";
import { gutter } from "./scene";

interface Props {
  store: Store;
  axis: AxisState;
  width: number;
}

const LEAST_PX = 24;

/** The notes on what is visible, below the ruler; a click goes to what a note is pinned to. */
export function NoteLane({ store, axis, width }: Props): JSX.Element | null {
  const shown = placed({ store, axis, width });
  if (!shown.length) return null;
  return (
    <div class="note-lane" role="group" aria-label="Notes">
      <span class="dim" style={{ width: `${gutter.value}px` }}>
        notes
      </span>
      <div class="note-room">
        {shown.map(({ note, at, left }, i) => {
          const room = (shown[i + 1]?.left ?? width) - left;
          return (
            <button
              key={at}
              type="button"
              class="note-flag"
              title={`${note.label}: ${note.text}`}
              style={{ left: `${left}px`, maxWidth: `${Math.max(room - 2, LEAST_PX)}px` }}
              onClick={() => goToNote(store, note)}
            >
              {note.text || "…"}
            </button>
          );
        })}
      </div>
    </div>
  );
}

/** A line through the timeline at the time of each note. */
export function NoteLines(props: Props): JSX.Element {
  return (
    <>
      {placed(props).map(({ at, left }) => (
        <div key={at} class="note-line" aria-hidden="true" style={{ left: `${gutter.value + left}px` }} />
      ))}
    </>
  ); // prettier-ignore
}

function placed({ store, axis, width }: Props) {
  const window = axis.window.value;
  const scale = width / (window.to - window.from);
  const trace = store.client.value?.trace ?? "";
  return notesIn(store.view.value.notes, trace, window).map((one) => ({
    ...one,
    left: (one.note.time - window.from) * scale,
  }));
}
