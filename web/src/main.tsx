import { render } from "preact";
import { connect } from "./api/connect";
import { messageOf } from "./base/error";
import { markBusy } from "./state/awaited";
import { begin } from "./state/begin";
import { followUrl } from "./state/history";
import { Store } from "./state/store";
import { followTheme } from "./state/theme";
import { Shell } from "./views/shell/shell";
import "./styles/index.css";

async function start(root: HTMLElement): Promise<void> {
  followTheme();
  markBusy(document.documentElement);
  const store = new Store(await connect(document), location.hash);
  followUrl(store);
  begin(store);
  root.replaceChildren();
  render(<Shell store={store} />, root);
}

const root = document.getElementById("app")!;
start(root).catch((error: unknown) => {
  const line = document.createElement("p");
  line.className = "start-line";
  line.textContent = `The page could not start: ${messageOf(error)}`;
  root.replaceChildren(line);
});
