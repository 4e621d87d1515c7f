// Show the claims that the table lists, and the claim in the URL.
const claims = document.querySelectorAll("#claims > section");

function show() {
  if (!document.querySelector("#claims-table tbody")) return;
  const links = document.querySelectorAll("#claims-table tbody a");
  const listed = new Set([...links].map((link) => link.hash));
  for (const claim of claims) {
    const address = `#${claim.id}`;
    claim.hidden = !listed.has(address) && address !== location.hash;
  }
}

function visit() {
  show();
  document.querySelector(location.hash || "#claims")?.scrollIntoView();
}

new MutationObserver(show).observe(document.getElementById("explorer"), {
  childList: true,
  subtree: true,
});
addEventListener("hashchange", visit);
