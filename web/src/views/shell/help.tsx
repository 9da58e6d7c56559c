import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Store } from "../../state/store";
import { panesOf } from "../index";

const KEYS: [string, string][] = [
  ["← →", "the operation before or after, within a level"],
  ["↑ ↓", "the operation around it, the longest inside it"],
  ["Home End", "the first, the last operation of a level"],
  ["Enter", "open the chosen operation"],
  ["Esc Backspace", "close the lowest level"],
  ["c", "down the slowest operations on the CPU"],
  ["g", "down the slowest operations on the device"],
  ["/", "search; Esc in the box ends it"],
  ["a", "all threads, streams and ranks"],
  ["m", "the step on screen alone, or means over all"],
  ["t", "the timeline as a table"],
  ["+ − 0", "what-if timelines: nearer, further, all of them"],
  ["p", "open in Perfetto"],
  ["d", "light or dark"],
  ["?", "these keys"],
];

export function Help({ store }: { store: Store }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const shown = store.helpShown.value;
  useEffect(() => {
    if (shown) dialog.current?.showModal();
    else dialog.current?.close();
  }, [shown]);
  const first = panesOf(store).slice(0, 9);
  const panes = first.map((one, i): [string, string] => [String(i + 1), one.title]);
  return (
    <dialog
      ref={dialog}
      aria-label="Keys"
      onClose={() => (store.helpShown.value = false)}
      onClick={(event) => event.target === dialog.current && dialog.current?.close()}
    >
      <h2>Keys</h2>
      <div class="help-columns">
        <dl class="keys">
          {[...KEYS, ...panes].map(([key, what]) => (
            <div key={key}>
              <dt>
                {key.split(" ").map((one) => (
                  <kbd key={one}>{one}</kbd>
                ))}
              </dt>
              <dd>{what}</dd>
            </div>
          ))}
        </dl>
        <section>
          <h3>How to read the timeline</h3>
          <ul class="reading">
            <li>
              Each level is the inside of one operation, fitted to the width. A click opens the
              next.
            </li>
            <li>The hotter the colour, the more of the level's time an operation takes.</li>
            <li>The line at a bar's foot is on the side that bounds it: CPU or device.</li>
            <li>≈ marks device work drawn earlier than it ran, to stand below its CPU side.</li>
            <li>Arrows lead from a call to its kernel, and between backward and forward.</li>
          </ul>
        </section>
      </div>
      <form method="dialog">
        <button type="submit">Close</button>
      </form>
    </dialog>
  );
}
