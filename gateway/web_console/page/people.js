// Who may write, who asks to, and who decided it.

import { ask, button, h, mark, section, table, time } from "./elements.js";
import { call } from "./operations.js";

const STANDINGS = {
  owner: () => mark("good", "owner"),
  allowed: () => mark("good", "may write"),
  paired: () => mark("good", "may write"),
  blocked: () => mark("bad", "blocked"),
};

export async function people({ again, act }) {
  const [pending, listed, audit] = await Promise.all([
    call("people pending"),
    call("people list"),
    call("people audit", { limit: 50 }),
  ]);
  const name = (each) => `${each.channel}:${each.who}`;

  /** Do one thing about somebody, after a question where it shuts them out, and show what has become of it. */
  const decide = (operation, who, done, question = "") => async () => {
    if (question && !(await ask(question, "Yes"))) return;
    await act(async () => {
      await call(operation, { who });
      return done;
    });
    await again();
  };

  const who = h("input", { id: "allow-who", name: "who", required: true, maxlength: 200, autocomplete: "off", placeholder: "telegram:42" });
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: async (event) => {
        event.preventDefault();
        const is_block = event.submitter?.value === "block";
        const subject = who.value.trim();
        if (is_block && !(await ask(`Block ${subject}? They are not answered any more.`, "Block"))) return;
        await act(async () => {
          await call(is_block ? "people block" : "people allow", { who: subject });
          return `${subject} ${is_block ? "is blocked" : "may write"}`;
        });
        await again();
      },
    },
    h("label", { for: "allow-who" }, "Account, chat, guild, team or role"),
    who,
    h("button", { type: "submit", value: "allow", class: "primary" }, "Allow"),
    h("button", { type: "submit", value: "block" }, "Block"),
  );

  return [
    section(
      "Asking for access",
      table(
        "People and chats that ask for access",
        [
          ["Who", name],
          ["Name", (each) => each.name || "–"],
          ["Since", (each) => time(each.at)],
          [
            "Decide",
            (each) => [
              button("Approve", decide("people approve", name(each), `${name(each)} may write`), { "aria-label": `Approve ${name(each)}`, class: "primary" }),
              " ",
              button("Deny", decide("people deny", name(each), `${name(each)} was denied`, `Deny ${name(each)}?`), { "aria-label": `Deny ${name(each)}` }),
            ],
          ],
        ],
        pending,
        "Nobody asks for access.",
      ),
    ),
    section("Allow or block", form),
    section(
      "Who may write",
      table(
        "Accounts and chats with a decision",
        [
          ["Who", name],
          ["Name", (each) => each.name || "–"],
          ["Standing", (each) => (STANDINGS[each.standing] ?? (() => each.standing))()],
          ["By", (each) => (each.came_by === "setting" ? "the settings" : each.by || each.came_by)],
          ["Since", (each) => time(each.at)],
          ["Change", (each) => changes(each, name(each), decide)],
        ],
        listed,
        "Nobody may write yet.",
      ),
    ),
    section(
      "Audit",
      table(
        "Decisions, the newest first",
        [
          ["When", (each) => time(each.at)],
          ["By", (each) => each.by],
          ["What", (each) => each.what],
          ["About", (each) => each.whom || "–"],
          ["Outcome", (each) => each.outcome],
        ],
        audit,
        "Nothing was decided yet.",
      ),
    ),
  ];
}

function changes(each, subject, decide) {
  if (each.standing === "owner") return each.came_by === "setting" ? "in PARLOUR_OWNERS" : "parlour owner remove";
  const allow = button("Allow", decide("people allow", subject, `${subject} may write`), { "aria-label": `Allow ${subject}` });
  const block = button("Block", decide("people block", subject, `${subject} is blocked`, `Block ${subject}? They are not answered any more.`), { "aria-label": `Block ${subject}` });
  const remove = button("Take back", decide("people remove", subject, `the decision about ${subject} is taken back`), { "aria-label": `Take back the decision about ${subject}` });
  return [each.standing === "blocked" ? allow : block, each.came_by === "decision" ? [" ", remove] : null];
}
