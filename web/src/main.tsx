import { render } from "preact";
import { connect } from "./api/connect";
import { firstHash, startPage } from "./base/start";
import { lookAhead } from "./state/ahead";
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
  const store = new Store(await connect(document), firstHash());
  followUrl(store);
  begin(store);
  lookAhead(store);
  root.replaceChildren();
  render(<Shell store={store} />, root);
}

startPage(start);
