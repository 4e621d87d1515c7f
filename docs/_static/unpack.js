// Run scripts that `repro.site.compressed_scripts` compressed (gzip, base64), one after another.
let unpacked = Promise.resolve();

function unpack(packed) {
  unpacked = unpacked.then(() => run(packed));
}

async function run(packed) {
  const bytes = Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}
