import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { TERMS } from "../../base/glossary";
import type { Store } from "../../state/store";
import { FactList } from "../../widgets/fact_list";
import { tabsOf } from "../index";

const KEYS: [string, string][] = [
  ["← →", "previous, next operation in the level"],
  ["↑ ↓", "enclosing operation, longest operation inside"],
  ["Home End", "first, last operation of the level"],
  ["w s", "zoom the time axis in, out"],
  ["a d", "move it left, right; so do Shift and the arrow keys"],
  ["f 0", "zoom to what is selected, to the whole level"],
  ["drag", "select an area for its statistics; with Shift, move the axis"],
  ["r", "area of what is selected, else of what is visible; arrow keys move its edges"],
  ["Ctrl wheel", "zoom the axis"],
  ["[ ]", "previous, next step"],
  ["Ctrl+K", "commands, panes, tracks, kernels and modules by name"],
  ["Enter", "open the selected operation"],
  ["Esc", "close the area, then the marker, then the lowest level"],
  ["Backspace", "close the lowest level"],
  ["c", "follow the slowest operations on the CPU"],
  ["g", "longest kernel of the step"],
  ["/", "search; Enter and Shift+Enter go to the next and previous hit, Esc ends it"],
  ["e", "all threads, streams and ranks"],
  ["~", "device work below its launches, or when it ran"],
  ["m", "this step only, or means over all steps"],
  ["t", "the timeline as a table"],
  ["n", "note on the moment below the pointer, else on what is selected"],
  [
    "k",
    "set a marker at the pointer, or at what is selected, from which times are measured; again: remove it",
  ],
  ["p", "open in Perfetto"],
  ["l", "light or dark"],
  ["?", "keys and terms"],
];

export function Help({ store }: { store: Store }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const shown = store.helpShown.value;
  useEffect(() => {
    if (!shown) return dialog.current?.close();
    dialog.current?.showModal();
    dialog.current?.scrollTo(0, 0); // a low window would begin at the button that has the focus
  }, [shown]);
  const panes = tabsOf(store).map((tab, i): [string, string] => [String(i + 1), tab[0]!.title]);
  return (
    <dialog
      ref={dialog}
      aria-label="Keys and terms"
      onClose={() => (store.helpShown.value = false)}
      onClick={(event) => event.target === dialog.current && dialog.current?.close()}
    >
      <h2>Keys and terms</h2>
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
            <li>Everything is drawn when it ran, on one time axis. Drag the ruler to move it.</li>
            <li>
              Each level shows the inside of one operation. Click an operation to open it: the axis
              zooms to it.
            </li>
            <li>
              A bar's hue is its stage; the stronger the color, the more of the level's time it
              takes.
            </li>
            <li>
              A bar spans from start to end. Its solid part is busy time, drawn from the left.
            </li>
            <li>The line at a bar's foot is on the side that bounds it: CPU or device.</li>
            <li>Arrows lead from a call to its kernel, and between backward and forward.</li>
            <li>Drag over an area to see what it holds.</li>
          </ul>
          <h3 id="terms">Terms</h3>
          <div class="terms" role="region" aria-labelledby="terms" tabIndex={0}>
            <FactList facts={TERMS} />
          </div>
        </section>
      </div>
      <form method="dialog">
        <button type="submit" autoFocus>
          Close
        </button>
      </form>
    </dialog>
  );
}
