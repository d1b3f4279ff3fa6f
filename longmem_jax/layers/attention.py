"""TEMPORARY"""
import flax.struct, jax, jax.numpy as jnp
from typing import Any
@flax.struct.dataclass
class RelativeTable:
    queries: Any
    table: Any
def attend(q,k,v,*,offset,first=None,window=0,mask=None,bias=None,relative=None,scale=None,dropout_rate=0.,dropout_key=None,causal=True,block_size=0):
    w=jnp.promote_types(q.dtype,jnp.float32)
    b,h,n,d=q.shape; m=k.shape[2]
    off=jnp.broadcast_to(jnp.asarray(offset,jnp.int32).reshape(-1,1,1),(b,n,m)) + jnp.arange(n,dtype=jnp.int32)[None,:,None]
    dist=off-jnp.arange(m,dtype=jnp.int32)[None,None,:]
    s=jnp.einsum('bhqd,bhkd->bhqk',q,k,preferred_element_type=w)
    if relative is not None:
        r=jnp.einsum('bhqd,hcd->bhqc',relative.queries,relative.table,preferred_element_type=w)
        s=s+jnp.take_along_axis(r,jnp.broadcast_to(jnp.clip(dist,0,r.shape[-1]-1)[:,None],(b,h,n,m)),axis=-1)
    s=s*jnp.asarray(scale or d**-0.5,w)
    if bias is not None: s=s+jnp.broadcast_to(bias.astype(w),s.shape)
    vis=dist>=0
    if window: vis=vis&(dist<window)
    if first is not None: vis=vis&(jnp.arange(m,dtype=jnp.int32)[None,None,:]>=first[:,None,None])
    s=jnp.where(vis[:,None],s,-1e30)
    p=jax.nn.softmax(s,axis=-1)
    return jnp.einsum('bhqk,bhkd->bhqd',p.astype(v.dtype),v)
