import type { JSX } from "preact";
import { messageOf } from "../base/error";
import { saveBlob, saveText } from "../base/save";
import { bitmapOf, pictureOf } from "../render/picture";
import type { Store } from "../state/store";
import { fileName } from "./file_name";

/** Pixels of a bitmap for each of CSS: enough for paper. */
const RATIO = 2;

/** Saves what is on screen of some parts of the page as a picture. */
export function SavePicture(props: {
  store: Store;
  of: string;
  /** Selectors of the parts, from top to bottom. */
  parts: readonly string[];
  disabled?: boolean;
}): JSX.Element {
  const { store, of } = props;
  const save = async (kind: string): Promise<void> => {
    const found = props.parts.flatMap((one) => document.querySelector(one) ?? []);
    const picture = pictureOf(found);
    const file = fileName(store, of);
    if (kind === "svg") saveText(picture.svg, `${file}.svg`, "image/svg+xml");
    else saveBlob(await bitmapOf(picture, RATIO), `${file}.png`);
  };
  return (
    <select
      class="save-picture"
      aria-label={`Save a picture of the ${of}`}
      title={`Save the ${of} as it is on screen`}
      value=""
      disabled={props.disabled}
      onChange={(event) => {
        const kind = event.currentTarget.value;
        event.currentTarget.value = "";
        save(kind).catch((error: unknown) => (store.notice.value = messageOf(error)));
      }}
    >
      <option value="" disabled hidden>
        Picture
      </option>
      <option value="svg">SVG</option>
      <option value="png">PNG</option>
    </select>
  );
}
